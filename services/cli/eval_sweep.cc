// `ridgefill eval sweep`.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/status.h"
#include "engine/eval/sweep.h"
#include "services/cli/eval_run.h"

namespace ridgefill::cli {
namespace {

struct SweepFlags {
  ModelFlags model;
  EvalText text;
  std::string out;
  std::vector<std::string> splits, selectors = {"attention"};
  std::vector<int64_t> lengths = {4096}, tails = {256, 512, 1024};
  std::vector<float> shares = {0, 0.05f, 0.1f};
  int64_t continuation = 256;
  int runs = 3;
};

// At each split and tail: SPEED where a share is 0, QUALITY with each selector at the others, and the
// identity fill.
absl::StatusOr<std::vector<eval::Variant>> Variants(const SweepFlags& flags) {
  std::vector<eval::Variant> out;
  for (const float share : flags.shares) {
    if (!(share >= 0 && share <= 1)) {
      return BadFlag(absl::StrCat("--shares must be in [0, 1], got ", share));
    }
    if (share == 0) {
      out.push_back({eval::Fill::kRidge});
      continue;
    }
    for (const std::string& name : flags.selectors) {
      RF_ASSIGN_OR_RETURN(const ridge::Selector selector, Parse("--selectors", name, kSelectors));
      out.push_back({eval::Fill::kRidge, selector, share});
    }
  }
  out.push_back({eval::Fill::kIdentity});
  return out;
}

absl::Status Sweep(const SweepFlags& flags, const Environment& environment) {
  if (!flags.model.maps.empty()) {
    return BadFlag("--maps names one map set; a sweep takes all of its own from --splits");
  }
  RF_ASSIGN_OR_RETURN(const auto variants, Variants(flags));
  const auto config = flags.model.ToServeConfig();
  common::LoadModelOptions load;
  load.home = environment.home;
  load.source = config.router().source();
  load.source.clear_maps();
  load.source.add_maps("none");
  load.backend = config.backend();
  load.for_decode = false;
  RF_ASSIGN_OR_RETURN(const common::LoadedModel model, common::LoadModel(load));
  RF_ASSIGN_OR_RETURN(const auto sets, LoadMapSets(model, environment.home, flags.splits));
  const auto clock = base::MakeSystemClock();
  eval::SweepOptions options;
  MeasureRun run = {model, {}, flags.out, {}};
  for (const auto& maps : sets) {
    options.maps[maps->manifest().split] = maps->manifest().digest;
    run.maps.push_back(maps.get());
  }
  options.tails = flags.tails;
  options.continuation = flags.continuation;
  options.variants = variants;
  options.runs = flags.runs;
  options.threads = model.backend->capabilities().threads;
  options.clock = clock.get();
  options.seed = flags.text.seed;
  Measures measures;
  for (const int64_t length : flags.lengths) {
    EvalText text = flags.text;
    text.length = length;
    text.context = model.context_tokens;
    RF_ASSIGN_OR_RETURN(auto documents, EvalDocuments(*model.tokenizer, text));
    RF_ASSIGN_OR_RETURN(auto measure, eval::SweepMeasure::Create(std::move(documents), options));
    measures.push_back(std::make_unique<eval::SweepMeasure>(std::move(measure)));
  }
  return RunMeasures(run, measures);
}

void AddPointFlags(CLI::App& command, SweepFlags& flags) {
  const char* const group = "Points";
  command
      .add_option(
          "--splits", flags.splits,
          "Map sets of different splits, as `ridgefill fit --split 15,16,17` makes them: folders, or names "
          "under $RIDGEFILL_HOME/maps")
      ->required()
      ->delimiter(',')
      ->type_name("MAPS,...")
      ->group(group);
  command.add_option("--tails", flags.tails, "Rows of the tail")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("T,...")
      ->group(group);
  command.add_option("--shares", flags.shares, "Most of the bulk that QUALITY selects; 0: SPEED")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("X,...")
      ->group(group);
  command
      .add_option("--selectors", flags.selectors,
                  "How QUALITY selects rows: attention, probe, random, rarity")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("SELECTOR,...")
      ->group(group);
}

void AddSweepFlags(CLI::App& command, SweepFlags& flags) {
  flags.text.documents = 20;
  command.add_option("--documents", flags.text.documents, "Documents, or all there are")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command.add_option("--length", flags.lengths, "Tokens of a document, continuation included")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("N,...");
  command.add_option("--continuation", flags.continuation, "Tokens of a document that follow its prompt")
      ->capture_default_str()
      ->type_name("N");
  command
      .add_option(
          "--runs", flags.runs,
          "Timed runs of each point and of exact in turns, after one that does not count; 0: no times")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  command
      .add_option(
          "--out", flags.out,
          "Append records to this file, and keep finished documents and times in FILE.partial: the same "
          "command goes on where it was stopped")
      ->type_name("FILE");
  command.add_option("--corpus", flags.text.corpus, "Folder of .txt files that no map was fitted on")
      ->capture_default_str()
      ->type_name("DIR");
  command.add_option("--seed", flags.text.seed, "Of the choice of documents")
      ->capture_default_str()
      ->type_name("N");
}

}  // namespace

void AddEvalSweep(CLI::App& eval, Run& run) {
  CLI::App* const command = eval.add_subcommand(
      "sweep", "Loss against time over split, tail and share: one exact pass a document for all points");
  command->footer(
      "Times are of this program's own forward pass over one prompt, ids to first logits; `ridgefill bench "
      "ttft` "
      "times\nthe services.\n\n"
      "Example\n"
      "  ridgefill fit --model smollm2-135m-instruct --corpus tests/data/corpus/calibration --split 16,18,20 "
      "--out maps\n"
      "  ridgefill eval sweep --model smollm2-135m-instruct --splits maps/split-* --out sweep.jsonl\n"
      "  ridgefill eval plot sweep.jsonl plots");
  const auto flags = std::make_shared<SweepFlags>();
  AddPointFlags(*command, *flags);
  AddSweepFlags(*command, *flags);
  flags->model.AddSourceTo(*command);
  command->callback([flags, &run] {
    run = [flags](const Environment& environment) { return Sweep(*flags, environment); };
  });
}

}  // namespace ridgefill::cli
