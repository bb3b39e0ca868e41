// `ridgefill fit` and `ridgefill inspect`.
#include "engine/fit/fit.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/status.h"
#include "engine/ridge/map_set.h"
#include "services/cli/command.h"
#include "services/cli/fit_auto.h"
#include "services/common/loaded_model.h"
#include "services/common/model_files.h"

namespace ridgefill::cli {
namespace {

struct FitFlags {
  ModelFlags model;
  std::string corpus, out;
  std::vector<std::string> splits;
  AutoFlags search;
  std::string of_search;  // one of its flags that was given; "" for none
  fit::FitOptions options;
  fit::CorpusOptions documents;
};

// One line on stderr, redrawn on a terminal; a line a stage elsewhere.
class ProgressBar {
 public:
  absl::Status operator()(const fit::FitProgress& progress) {
    const bool done = progress.done == progress.total;
    if (!terminal_ && !(done && progress.total > 0)) return absl::OkStatus();
    constexpr int kWidth = 30;
    const int filled = progress.total > 0 ? static_cast<int>(kWidth * progress.done / progress.total) : 0;
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start_);
    std::fprintf(stderr, "%s%-9s [%s%s] %lld/%lld, %.0f tokens/s, %.0f s%s", terminal_ ? "\r" : "",
                 std::string(fit::Name(progress.stage)).c_str(), std::string(filled, '#').c_str(),
                 std::string(kWidth - filled, '.').c_str(), static_cast<long long>(progress.done),
                 static_cast<long long>(progress.total), seconds > 0 ? progress.tokens / seconds : 0.0,
                 seconds, done || !terminal_ ? "\n" : "");
    std::fflush(stderr);
    return absl::OkStatus();
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const absl::Time start_ = absl::Now();
};

void PrintManifest(const ridge::MapSetManifest& manifest) {
  std::printf("model          %s (%s: %s)\n", manifest.model.name.c_str(), manifest.model.arch.c_str(),
              manifest.model.dimensions.c_str());
  std::printf("split          %d of %d layers\n", manifest.split, manifest.layers);
  std::printf("maps           %d a layer, %s, %s, onto %d values of %lld inputs%s\n", manifest.mixture,
              manifest.folded ? "folded" : "unfolded", manifest.dtype.c_str(),
              manifest.folded ? 2 * manifest.kv_width : manifest.hidden,
              static_cast<long long>(ridge::MapInputs(manifest)),
              manifest.previous_row ? " (the row and the one before)" : "");
  std::printf("tail           %d by default, at least %d; bulk of at least %d\n", manifest.tail_default,
              manifest.tail_minimum, manifest.min_bulk);
  std::printf("outlier rows   norm above %.4g (%.3g times the calibration median)\n",
              manifest.outlier_threshold, manifest.outlier_ratio);
  std::printf("fitted on      %lld rows of %s%s\n", static_cast<long long>(manifest.fit_rows),
              manifest.fit_corpus.c_str(), manifest.fit_weighted ? ", weighed by later attention" : "");
  std::printf("digest         %s\n", manifest.digest.c_str());
  if (manifest.report.empty()) return;
  std::printf("\nheld-out documents, beside the identity fill\n");
  std::printf("%5s  %10s %10s  %10s %10s  %9s %9s\n", "layer", "K cosine", "identity", "V error", "identity",
              "K lambda", "V lambda");
  for (const auto& layer : manifest.report) {
    std::printf("%5d  %10.4f %10.4f  %10.4f %10.4f  %9.1e %9.1e\n", layer.layer, layer.k_cosine,
                layer.identity_k_cosine, layer.v_error, layer.identity_v_error, layer.k_penalty,
                layer.v_penalty);
  }
}

// What --split says; empty for `auto`.
absl::StatusOr<std::vector<int>> ParseSplits(const std::vector<std::string>& words) {
  if (words.size() == 1 && words.front() == "auto") return std::vector<int>();
  std::vector<int> out;
  for (const std::string& word : words) {
    if (!absl::SimpleAtoi(word, &out.emplace_back())) {
      return base::Error(absl::StatusCode::kInvalidArgument, "FIT_SPLIT",
                         absl::StrCat("--split takes layers, or auto alone; got \"", word, "\""));
    }
  }
  return out;
}

absl::StatusOr<common::LoadedModel> Load(const FitFlags& flags, const Environment& environment) {
  common::LoadModelOptions load;
  load.home = environment.home;
  const auto config = flags.model.ToServeConfig();
  load.source = config.router().source();
  load.source.clear_maps();
  load.source.add_maps("none");
  load.backend = config.backend();
  load.for_decode = false;
  return common::LoadModel(load);
}

absl::StatusOr<fit::FitResult> FitSets(FitFlags& flags, const common::LoadedModel& model) {
  std::fprintf(stderr, "reading %s\n", flags.corpus.c_str());
  RF_ASSIGN_OR_RETURN(const auto documents, fit::LoadCorpus(*model.tokenizer, flags.corpus, flags.documents));
  flags.options.corpus = flags.corpus;
  ProgressBar bar;
  flags.options.progress = std::ref(bar);
  RF_ASSIGN_OR_RETURN(fit::FitResult result,
                      fit::FitMaps(*model.model, model.hello.model, documents, flags.options));
  if (result.resumed_documents > 0) {
    std::fprintf(stderr, "took up the rows of %lld documents from an earlier run\n",
                 static_cast<long long>(result.resumed_documents));
  }
  for (const auto& warning : result.warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  return result;
}

absl::Status FitAuto(FitFlags& flags, const common::LoadedModel& model, const std::string& home) {
  flags.options.splits = flags.search.candidates;
  if (flags.options.splits.empty()) flags.options.splits = CandidateSplits(model.model->config().layers);
  RF_ASSIGN_OR_RETURN(const SplitSearch search, SplitSearch::Prepare(model, flags.search, flags.options));
  flags.options.measured_text = search.measured_text();
  // One candidate too has a folder of its own.
  if (flags.options.splits.size() == 1) {
    flags.options.out = absl::StrCat(flags.out, "/split-", flags.options.splits.front());
  }
  const bool keep_rows = !flags.options.rows_folder.empty();
  if (!keep_rows) flags.options.rows_folder = flags.out + "/rows";  // until all is measured
  RF_ASSIGN_OR_RETURN(const fit::FitResult result, FitSets(flags, model));
  const auto swept = search.Run(result.sets, flags.out, home);
  const auto detail = base::GetErrorDetail(swept.status());
  const bool measured = swept.ok() || (detail.has_value() && detail->reason == "FIT_NO_SPLIT");
  if (!keep_rows && measured) fit::RemoveRows(result);
  RF_RETURN_IF_ERROR(swept.status());
  for (size_t i = 0; i < swept->size(); ++i) {
    if (!(*swept)[i].chosen) continue;
    const std::string& folder = result.sets[i].folder;
    RF_ASSIGN_OR_RETURN(const auto set, ridge::MapSet::Load(folder));
    PrintManifest(set->manifest());
    PrintSweep(*swept);
    std::printf("\nchosen: split %d, %s\n", (*swept)[i].split, folder.c_str());
  }
  return absl::OkStatus();
}

absl::Status Fit(FitFlags& flags, const Environment& environment) {
  RF_ASSIGN_OR_RETURN(flags.options.splits, ParseSplits(flags.splits));
  flags.options.out = flags.out;
  if (!flags.options.splits.empty() && !flags.of_search.empty()) {
    return base::Error(absl::StatusCode::kInvalidArgument, "FIT_SPLIT",
                       absl::StrCat(flags.of_search, " is of --split auto; without it nothing is measured"));
  }
  RF_ASSIGN_OR_RETURN(const common::LoadedModel model, Load(flags, environment));
  if (flags.options.splits.empty()) return FitAuto(flags, model, environment.home);
  RF_ASSIGN_OR_RETURN(const fit::FitResult result, FitSets(flags, model));
  for (const fit::FittedSet& set : result.sets) {
    if (result.sets.size() > 1) std::printf("\n%s\n", set.folder.c_str());
    PrintManifest(set.manifest);
  }
  return absl::OkStatus();
}

void AddFitFlags(CLI::App& command, FitFlags& flags) {
  auto& options = flags.options;
  command
      .add_option("--corpus", flags.corpus, "Folder of .txt files to fit on, with those of folders below it")
      ->required()
      ->type_name("DIR");
  command
      .add_option("--split", flags.splits,
                  "Layers below it run for every row. Several: one pass over the text, a map set each in "
                  "<out>/split-<S>. auto: fits and measures several, and chooses the smallest within bounds")
      ->required()
      ->delimiter(',')
      ->type_name("S,...");
  command.add_option("--out", flags.out, "Folder of the map set")->required()->type_name("DIR");
  const char* const group = "Fit";
  command.add_option("--rows", options.rows, "Prompt rows to fit on")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  command.add_option("--document_tokens", flags.documents.document_tokens, "Length of a document")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  command.add_option("--held_out", options.held_out_documents, "Documents kept for the report, never fitted")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  command
      .add_option(
          "--rows_folder", options.rows_folder,
          "Keep what the model makes of the text here, for another fit (default: <out>/rows, removed at "
          "the end)")
      ->type_name("DIR")
      ->group(group);
  command.add_option("--merge", options.merge, "Folders of rows of other runs, over other text")
      ->type_name("DIR,...")
      ->delimiter(',')
      ->group(group);
}

// How the maps are solved.
void AddSolveFlags(CLI::App& command, fit::FitOptions& options) {
  const char* const group = "Solve";
  command.add_option("--weigh_rows", options.weigh_rows, "Rows weigh what later rows attend to them")
      ->capture_default_str()
      ->type_name("BOOL")
      ->group(group);
  command.add_option("--mixture", options.mixture, "Maps a layer, one for each cluster of rows")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  command.add_option("--normalise", options.normalise, "Divide inputs by their root mean square")
      ->capture_default_str()
      ->type_name("BOOL")
      ->group(group);
  command.add_option("--previous_row", options.previous_row, "Take the row before as a second input")
      ->capture_default_str()
      ->type_name("BOOL")
      ->group(group);
}

// What goes into the map set.
void AddMapFlags(CLI::App& command, fit::FitOptions& options) {
  const char* const group = "Map set";
  command.add_option("--dtype", options.dtype, "bf16 or int8")
      ->capture_default_str()
      ->type_name("DTYPE")
      ->group(group);
  command
      .add_option("--outlier_ratio", options.outlier_ratio,
                  "Rows this many times the median norm are never filled")
      ->capture_default_str()
      ->type_name("X")
      ->group(group);
  command
      .add_option("--outlier_threshold", options.outlier_threshold,
                  "The absolute norm instead (default: estimated)")
      ->type_name("X")
      ->group(group);
  command.add_option("--tail", options.tail_default, "Default tail of the set")
      ->capture_default_str()
      ->type_name("T")
      ->group(group);
  command.add_option("--tail_minimum", options.tail_minimum, "Least tail of the set")
      ->capture_default_str()
      ->type_name("T")
      ->group(group);
  command.add_option("--min_bulk", options.min_bulk, "Least bulk worth filling")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
}

absl::Status Inspect(const std::string& maps, const std::string& home) {
  RF_ASSIGN_OR_RETURN(const std::string folder, common::FindMaps(home, "", maps));
  RF_ASSIGN_OR_RETURN(const auto set, ridge::MapSet::Load(folder));
  PrintManifest(set->manifest());
  RF_ASSIGN_OR_RETURN(const auto sweep, ridge::ReadSweep(folder));
  PrintSweep(sweep);
  return absl::OkStatus();
}

}  // namespace

void AddFit(CLI::App& app, Run& run) {
  CLI::App* const command = app.add_subcommand("fit", "Fit a map set to a model");
  command->footer(
      "The rows of the text are kept on disk until the maps are solved (with the defaults and a small model "
      "about\n"
      "1 GB under <out>/rows): a run that was stopped goes on where it was when started again with the same "
      "flags.\n"
      "The report compares the stored maps with the identity fill on the held-out documents, on which no map "
      "is\n"
      "fitted but its penalties are chosen.\n\n"
      "Examples\n"
      "  ridgefill fit --model smollm2-135m-instruct --corpus tests/data/corpus/calibration --split 18 \\\n"
      "    --out ~/.cache/ridgefill/maps/smollm2-135m-instruct\n"
      "  ridgefill fit --model smollm2-135m-instruct --corpus tests/data/corpus/calibration --split auto \\\n"
      "    --max_loss 0.02 --min_needle 0.95 --out maps");
  const auto flags = std::make_shared<FitFlags>();
  AddFitFlags(*command, *flags);
  AddSolveFlags(*command, flags->options);
  AddMapFlags(*command, flags->options);
  flags->search.AddTo(*command);
  flags->model.AddSourceTo(*command);
  command->callback([flags, command, &run] {
    flags->of_search = AutoFlags::FirstGiven(*command);
    run = [flags](const Environment& environment) { return Fit(*flags, environment); };
  });
}

void AddInspect(CLI::App& app, Run& run) {
  CLI::App* const command = app.add_subcommand("inspect", "Print what a map set is and how well it fits");
  const auto maps = std::make_shared<std::string>();
  command->add_option("maps", *maps, "Folder of the map set, or a name under $RIDGEFILL_HOME/maps")
      ->required()
      ->type_name("MAPS");
  command->callback([maps, &run] {
    run = [maps](const Environment& environment) { return Inspect(*maps, environment.home); };
  });
}

}  // namespace ridgefill::cli
