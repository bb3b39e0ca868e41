// `ridgefill eval`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/base/status.h"
#include "engine/eval/measure.h"
#include "engine/eval/needle_measure.h"
#include "engine/eval/plot.h"
#include "engine/eval/splice.h"
#include "engine/eval/text.h"
#include "engine/ridge/selection.h"
#include "services/cli/command.h"
#include "services/cli/eval_run.h"
#include "services/common/loaded_model.h"

namespace ridgefill::cli {
namespace {

struct EvalFlags {
  ModelFlags model;
  std::string out, corpus = "tests/data/corpus/heldout";
  std::vector<std::string> modes = {"SPEED"}, fills = {"ridge", "identity"}, selectors = {"attention"};
  std::vector<float> shares = {ridge::SelectionOptions().share};
  std::vector<std::string> splits;  // map sets; none: the model's one
  std::vector<int64_t> lengths = {4096}, tails = {512};
  int64_t documents = 60, continuation = 256;
  std::vector<std::string> tasks, evidence = {"bulk"};
  int64_t items = 20;
  bool report = false;              // `all` alone
  int64_t context = 0;              // the model's, in tokens
  std::vector<int> subject_splits;  // of `splits`, ascending
  uint64_t seed = 7;
};

std::vector<eval::Variant> OfEachSplit(const std::vector<eval::Variant>& variants,
                                       const std::vector<int>& splits) {
  if (splits.empty()) return variants;
  std::vector<eval::Variant> out;
  for (auto split = splits.rbegin(); split != splits.rend(); ++split) {
    for (eval::Variant variant : variants) {
      variant.split = *split;
      out.push_back(variant);
    }
  }
  return out;
}

// The fills in SPEED, and the ridge fill with each selector and share in QUALITY: of each split, higher ones
// first, as a subject runs them.
absl::StatusOr<std::vector<eval::Variant>> Variants(const EvalFlags& flags) {
  constexpr eval::Fill kFills[] = {eval::Fill::kRidge, eval::Fill::kIdentity};
  constexpr ridge::Mode kModes[] = {ridge::Mode::kSpeed, ridge::Mode::kQuality};
  for (const float share : flags.shares) {
    if (!(share >= 0 && share <= 1)) return BadFlag(absl::StrCat("--share must be in [0, 1], got ", share));
  }
  std::vector<eval::Variant> out;
  for (const std::string& mode_name : flags.modes) {
    RF_ASSIGN_OR_RETURN(const ridge::Mode mode, Parse("--mode", mode_name, kModes));
    if (mode == ridge::Mode::kSpeed) {
      for (const std::string& name : flags.fills) {
        RF_ASSIGN_OR_RETURN(const eval::Fill fill, Parse("--fills", name, kFills));
        out.push_back({fill});
      }
      continue;
    }
    for (const std::string& name : flags.selectors) {
      RF_ASSIGN_OR_RETURN(const ridge::Selector selector, Parse("--selectors", name, kSelectors));
      for (const float share : flags.shares) out.push_back({eval::Fill::kRidge, selector, share});
    }
  }
  return OfEachSplit(out, flags.subject_splits);
}

struct TextKinds {
  bool nll = false, distant = false, novel = false;
};

absl::Status AddText(const tokenizer::Tokenizer& tokenizer, const EvalFlags& flags, const TextKinds& kinds,
                     Measures& out) {
  for (const int64_t length : flags.lengths) {
    eval::TextOptions options;
    options.tails = flags.tails;
    options.continuation = flags.continuation;
    RF_ASSIGN_OR_RETURN(options.variants, Variants(flags));
    options.nll = kinds.nll;
    options.distant = kinds.distant;
    options.novel = kinds.novel;
    options.seed = flags.seed;
    RF_ASSIGN_OR_RETURN(auto documents, EvalDocuments(tokenizer, {flags.corpus, length, flags.documents,
                                                                  flags.seed, flags.context}));
    RF_ASSIGN_OR_RETURN(auto measure, eval::TextMeasure::Create(std::move(documents), options));
    out.push_back(std::make_unique<eval::TextMeasure>(std::move(measure)));
  }
  return absl::OkStatus();
}

absl::Status AddSplice(const tokenizer::Tokenizer& tokenizer, const EvalFlags& flags, Measures& out) {
  RF_ASSIGN_OR_RETURN(const auto variants, Variants(flags));
  for (const int64_t length : flags.lengths) {
    RF_ASSIGN_OR_RETURN(const auto documents, EvalDocuments(tokenizer, {flags.corpus, length, flags.documents,
                                                                        flags.seed, flags.context}));
    for (const int64_t tail : flags.tails) {
      for (const eval::Variant& variant : variants) {
        RF_ASSIGN_OR_RETURN(auto measure, eval::SpliceMeasure::Create(
                                              documents, {tail, flags.continuation, variant, flags.seed}));
        out.push_back(std::make_unique<eval::SpliceMeasure>(std::move(measure)));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status AddNeedles(const tokenizer::Tokenizer& tokenizer, const EvalFlags& flags, Measures& out) {
  constexpr eval::Evidence kEvidence[] = {eval::Evidence::kBulk, eval::Evidence::kTail};
  RF_ASSIGN_OR_RETURN(const auto variants, Variants(flags));
  RF_ASSIGN_OR_RETURN(const std::string text, CorpusText(flags.corpus));
  for (const std::string& task : flags.tasks) {
    for (const std::string& evidence : flags.evidence) {
      for (const int64_t length : flags.lengths) {
        for (const int64_t tail : flags.tails) {
          eval::NeedleOptions asked;
          RF_ASSIGN_OR_RETURN(asked.evidence, Parse("--evidence", evidence, kEvidence));
          asked.length = length;
          asked.tail = tail;
          asked.items = flags.items;
          asked.seed = flags.seed;
          RF_ASSIGN_OR_RETURN(const auto options, MakeNeedleOptions(task, asked, flags.context));
          RF_ASSIGN_OR_RETURN(auto items, eval::MakeNeedles(tokenizer, text, options));
          out.push_back(std::make_unique<eval::NeedleMeasure>(std::move(items), options, variants));
        }
      }
    }
  }
  return absl::OkStatus();
}

// Everything: sized to stay under half an hour of two cores with a small model, or a report.
absl::Status AddAll(const tokenizer::Tokenizer& tokenizer, const EvalFlags& flags, Measures& out) {
  EvalFlags part = flags;
  part.documents = flags.report ? 60 : 12;
  part.lengths = flags.report ? std::vector<int64_t>{4096, 8192} : std::vector<int64_t>{4096};
  part.tails = flags.report ? std::vector<int64_t>{256, 512, 1024} : std::vector<int64_t>{512};
  RF_RETURN_IF_ERROR(AddText(tokenizer, part, {true, true, true}, out));

  part.tails = {512};
  part.lengths = {1024, 2048, 4096};
  if (flags.report) part.lengths.push_back(8192);
  part.tasks = {"single"};
  RF_RETURN_IF_ERROR(AddNeedles(tokenizer, part, out));
  if (!flags.report) part.lengths = {1024, 2048};
  part.tasks = {"multi_key"};
  RF_RETURN_IF_ERROR(AddNeedles(tokenizer, part, out));
  if (!flags.report) part.lengths = {1024};
  part.tasks = {"multi_value", "variables", "json", "code"};
  RF_RETURN_IF_ERROR(AddNeedles(tokenizer, part, out));
  part.lengths = {1024};
  part.tasks = {"single", "multi_key"};
  part.evidence = {"tail"};
  if (flags.report) RF_RETURN_IF_ERROR(AddNeedles(tokenizer, part, out));

  part.documents = flags.report ? 16 : 6;
  if (!flags.report) part.modes = {flags.modes.front()};
  part.lengths = {2048};
  part.tails = {256};
  part.fills = {"ridge"};
  return AddSplice(tokenizer, part, out);
}

absl::StatusOr<common::LoadedModel> Load(const EvalFlags& flags, const Environment& environment) {
  const auto config = flags.model.ToServeConfig();
  common::LoadModelOptions load;
  load.home = environment.home;
  load.source = config.router().source();
  load.backend = config.backend();
  load.for_decode = false;
  if (!flags.splits.empty()) {
    if (!flags.model.maps.empty()) return BadFlag("--maps and --splits both name map sets: one of them");
    load.source.add_maps("none");
  } else if (flags.model.maps.size() > 1) {
    return BadFlag("--maps names one map set here; --splits takes several");
  }
  RF_ASSIGN_OR_RETURN(common::LoadedModel model, common::LoadModel(load));
  if (model.maps.empty() && flags.splits.empty()) {
    return base::Error(
        absl::StatusCode::kFailedPrecondition, "NO_MAPS",
        "there is no map set to measure; fit one with `ridgefill fit`, or name it with --maps");
  }
  return model;
}

using AddMeasures = std::function<absl::Status(const tokenizer::Tokenizer&, const EvalFlags&, Measures&)>;

absl::Status Evaluate(const EvalFlags& flags, const AddMeasures& add, const Environment& environment) {
  RF_ASSIGN_OR_RETURN(const common::LoadedModel model, Load(flags, environment));
  Measures measures;
  EvalFlags of_model = flags;
  of_model.context = model.context_tokens;
  RF_ASSIGN_OR_RETURN(const auto sets, LoadMapSets(model, environment.home, flags.splits));
  MeasureRun run = {model, {}, flags.out, {}};
  if (sets.empty()) run.maps = model.map_sets();
  for (const auto& maps : sets) {
    run.maps.push_back(maps.get());
    of_model.subject_splits.push_back(maps->manifest().split);
  }
  RF_RETURN_IF_ERROR(add(*model.tokenizer, of_model, measures));
  return RunMeasures(run, measures);
}

void AddCommonFlags(CLI::App& command, EvalFlags& flags) {
  command
      .add_option(
          "--out", flags.out,
          "Append records to this file, and keep finished documents in FILE.partial: the same command "
          "goes on where it was stopped")
      ->type_name("FILE");
  command.add_option("--corpus", flags.corpus, "Folder of .txt files that no map was fitted on")
      ->capture_default_str()
      ->type_name("DIR");
  command.add_option("--mode", flags.modes, "SPEED, QUALITY")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("MODE,...");
  command
      .add_option("--selectors", flags.selectors,
                  "How QUALITY selects rows: attention, probe, random, rarity")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("SELECTOR,...");
  command.add_option("--share", flags.shares, "Most of the bulk that QUALITY selects")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("X,...");
  command.add_option("--fills", flags.fills, "Fills of SPEED: ridge, identity")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("FILL,...");
  command.add_option("--seed", flags.seed, "Of the choice of documents and items")
      ->capture_default_str()
      ->type_name("N");
  flags.model.AddSourceTo(command);
}

void AddSplitsFlag(CLI::App& command, EvalFlags& flags) {
  command
      .add_option("--splits", flags.splits,
                  "Instead of --maps, map sets of different splits, all over one exact run of each item: "
                  "folders, or names under $RIDGEFILL_HOME/maps")
      ->delimiter(',')
      ->type_name("MAPS,...");
}

void AddTextFlags(CLI::App& command, EvalFlags& flags) {
  command.add_option("--documents", flags.documents, "Documents, or all there are")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command.add_option("--length", flags.lengths, "Tokens of a document, continuation included")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("N,...");
  command.add_option("--tail", flags.tails, "Rows of the tail")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("T,...");
  command.add_option("--continuation", flags.continuation, "Tokens of a document that follow its prompt")
      ->capture_default_str()
      ->type_name("N");
}

void AddWindowFlags(CLI::App& command, EvalFlags& flags) {
  AddSplitsFlag(command, flags);
  AddTextFlags(command, flags);
}

void AddSpliceFlags(CLI::App& command, EvalFlags& flags) {
  flags.documents = 8;
  flags.fills = {"ridge"};
  AddTextFlags(command, flags);
}

void AddNeedleFlags(CLI::App& command, EvalFlags& flags) {
  flags.lengths = {1024, 2048, 4096, 8192};
  for (const eval::Task task : eval::kAllTasks) flags.tasks.push_back(std::string(eval::Name(task)));
  AddSplitsFlag(command, flags);
  command.add_option("--tasks", flags.tasks, "What is hidden")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("TASK,...");
  command.add_option("--evidence", flags.evidence, "Where: bulk, or tail as a control")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("WHERE,...");
  command.add_option("--items", flags.items, "Items of each task, place and length")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command.add_option("--length", flags.lengths, "Tokens of an item, answer included")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("N,...");
  command.add_option("--tail", flags.tails, "Rows of the tail; at most 256 below 2,048 tokens")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("T,...");
}

void AddAllFlags(CLI::App& command, EvalFlags& flags) {
  command.add_option("--items", flags.items, "Items of each needle cell")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command.add_flag(
      "--report", flags.report,
      "More documents, lengths, tails and tasks, and 100 items a cell unless --items says otherwise: "
      "hours");
  command.parse_complete_callback([&command, &flags] {
    if (flags.report && command.count("--items") == 0) flags.items = 100;
  });
}

struct Kind {
  const char* name;
  const char* description;
  AddMeasures add;
  void (*flags)(CLI::App& command, EvalFlags& flags);
};

AddMeasures Text(const TextKinds& kinds) {
  return [kinds](const tokenizer::Tokenizer& tokenizer, const EvalFlags& flags, Measures& out) {
    return AddText(tokenizer, flags, kinds, out);
  };
}

void AddOne(CLI::App& eval, Kind kind, Run& run) {
  CLI::App* const command = eval.add_subcommand(kind.name, kind.description);
  const auto flags = std::make_shared<EvalFlags>();
  kind.flags(*command, *flags);
  AddCommonFlags(*command, *flags);
  command->callback([flags, add = std::move(kind.add), &run] {
    run = [flags, add](const Environment& environment) { return Evaluate(*flags, add, environment); };
  });
}

absl::Status Plot(const std::string& file, const std::string& folder) {
  RF_ASSIGN_OR_RETURN(const std::string lines, base::ReadFile(file));
  auto parsed = eval::ParseRecords(lines);
  if (!parsed.ok()) return base::WithContext(parsed.status(), file);
  const std::vector<eval::Record>& records = *parsed;
  const auto charts = eval::ChartsOf(records);
  if (charts.empty()) {
    return base::Error(absl::StatusCode::kNotFound, "EVAL_NO_CHARTS",
                       absl::StrCat(file, ": nothing to draw in its ", records.size(),
                                    " records; there are charts of the measures nll, needle and splice, and "
                                    "of a sweep that took times (`--runs 0` draws nothing)"));
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);  // what is wrong shows when the first chart is written
  for (const auto& [name, chart] : charts) {
    const std::string path = absl::StrCat(folder, "/", name, ".svg");
    RF_RETURN_IF_ERROR(base::WriteFileAtomically(path, eval::ToSvg(chart)));
    std::printf("%s\n", path.c_str());
  }
  return absl::OkStatus();
}

void AddPlot(CLI::App& eval, Run& run) {
  CLI::App* const command = eval.add_subcommand("plot", "Charts (SVG) of the records in a file");
  const auto file = std::make_shared<std::string>(), folder = std::make_shared<std::string>();
  command->add_option("file", *file, "What --out wrote")->required()->type_name("FILE");
  command->add_option("folder", *folder, "Where the charts go")->required()->type_name("DIR");
  command->callback(
      [file, folder, &run] { run = [file, folder](const Environment&) { return Plot(*file, *folder); }; });
}

}  // namespace

void AddEval(CLI::App& app, Run& run) {
  CLI::App* const eval = app.add_subcommand("eval", "Measure what a map set costs in quality");
  eval->require_subcommand(1);
  eval->footer(
      "Every loss is paired with the exact run of the same tokens. Means over documents and accuracies have "
      "95 %\n"
      "intervals (bootstrap over documents, Wilson). Records go to standard output as JSON lines, or to "
      "--out; "
      "a\n"
      "table goes to standard error.\n\n"
      "Examples\n"
      "  ridgefill eval nll --model smollm2-135m-instruct --documents 60 --length 4096 --out quality.jsonl");
  AddOne(*eval,
         {"nll", "Paired loss on text, by window and distance from the bulk", Text({.nll = true}),
          &AddWindowFlags},
         run);
  AddOne(*eval,
         {"distant", "Loss on tokens that need distant context", Text({.distant = true}), &AddWindowFlags},
         run);
  AddOne(*eval, {"needle", "Retrieval of facts hidden in the bulk", &AddNeedles, &AddNeedleFlags}, run);
  AddOne(*eval,
         {"novel", "Perplexity ratio on tokens that are new in their document", Text({.novel = true}),
          &AddWindowFlags},
         run);
  AddOne(*eval, {"splice", "Which late layers, and K or V, carry the loss", &AddSplice, &AddSpliceFlags},
         run);
  AddEvalSweep(*eval, run);
  AddOne(*eval,
         {"all", "All of these but the sweep, sized for half an hour on two cores and a small model", &AddAll,
          &AddAllFlags},
         run);
  AddPlot(*eval, run);
}

}  // namespace ridgefill::cli
