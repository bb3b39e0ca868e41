// ridgefill fit: calibration text to a map set.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "engine/base/status.h"
#include "engine/fit/corpus.h"
#include "engine/fit/fit.h"
#include "services/cli/command.h"
#include "services/cli/report_table.h"
#include "services/common/loaded_model.h"

namespace ridgefill::cli {
namespace {

struct FitFlags {
  ModelFlags model;
  std::string corpus;
  fit::FitOptions options;
  fit::CorpusOptions documents;
};

// One line that rewrites itself on a terminal; a line per stage elsewhere.
class ProgressBar {
 public:
  absl::Status operator()(const fit::FitProgress& progress) {
    const bool terminal = isatty(STDERR_FILENO) != 0;
    const bool stage_ends = progress.done == progress.total;
    if (!terminal && !stage_ends) return absl::OkStatus();
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start_);
    constexpr int kWidth = 30;
    const int filled =
        progress.total == 0 ? kWidth : static_cast<int>(kWidth * progress.done / progress.total);
    absl::FPrintF(stderr, "%s%-8s [%s%s] %d/%d documents, %.0f tokens/s, %.0f s%s", terminal ? "\r" : "",
                  std::string(fit::Name(progress.stage)), std::string(filled, '='),
                  std::string(kWidth - filled, ' '), progress.done, progress.total,
                  progress.tokens / std::max(seconds, 1e-3), seconds, !terminal || stage_ends ? "\n" : "  ");
    return absl::OkStatus();
  }

 private:
  absl::Time start_ = absl::Now();
};

absl::Status Fit(const std::string& home, const FitFlags& flags) {
  common::LoadModelOptions load;
  load.home = home;
  load.source = flags.model.source;
  load.source.set_maps("none");
  load.backend = flags.model.backend;
  load.for_decode = false;
  load.context_tokens = flags.documents.document_tokens;
  load.kv_cache_contexts = 1;
  RF_ASSIGN_OR_RETURN(const common::LoadedModel model, common::LoadModel(load));
  RF_ASSIGN_OR_RETURN(const std::vector<fit::Document> documents,
                      fit::LoadCorpus(*model.tokenizer, flags.corpus, flags.documents));
  fit::FitOptions options = flags.options;
  options.corpus = flags.corpus;
  options.progress = ProgressBar();
  RF_ASSIGN_OR_RETURN(const fit::FitResult result,
                      fit::FitMaps(*model.model, model.hello.model, documents, options));
  if (result.resumed_documents > 0) {
    absl::FPrintF(stderr, "took up saved sums of %d documents\n", result.resumed_documents);
  }
  for (const std::string& warning : result.warnings) absl::FPrintF(stderr, "warning: %s\n", warning);
  PrintReport(result.manifest);
  absl::PrintF("\nwrote %s: split %d, %d rows, digest %s\n", options.out, result.manifest.split,
               result.manifest.fit_rows, result.manifest.digest);
  return absl::OkStatus();
}

}  // namespace

void AddFit(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("fit",
                                         "Fits a map set: runs the exact model over calibration text once "
                                         "and solves a ridge regression per late layer.\n"
                                         "A run that was interrupted goes on where its last saved sums stand "
                                         "when the same command is given again.");
  auto flags = std::make_shared<FitFlags>();
  fit::FitOptions& options = flags->options;
  AddModelFlags(*command, flags->model);
  command->remove_option(command->get_option("--maps"));
  command->add_option("--corpus", flags->corpus, "Folder of .txt files to fit on")
      ->type_name("DIR")
      ->required();
  command->add_option("--split", options.split, "Layers below it run for every prompt row")
      ->type_name("S")
      ->required();
  command->add_option("--out", options.out, "Folder of the map set to write")->type_name("DIR")->required();
  command->add_option("--rows", options.rows, "Prompt rows to fit on")->type_name("N")->capture_default_str();
  command
      ->add_option("--document_tokens", flags->documents.document_tokens, "Length that the text is cut into")
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--held_out", options.held_out_documents, "Documents kept for the penalty and the report")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--dtype", options.dtype, "Storage: bf16 or int8")
      ->check(CLI::IsMember({"bf16", "int8"}))
      ->capture_default_str();
  command->add_option("--tail", options.tail_default, "Default tail that the map set recommends")
      ->type_name("T")
      ->capture_default_str();
  command->add_option("--merge", options.merge, "Sums of other runs to add before solving")
      ->type_name("FILE");
  command->callback(
      [&context, flags] { context.run = [&context, flags] { return Fit(context.home, *flags); }; });
}

}  // namespace ridgefill::cli
