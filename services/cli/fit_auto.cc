#include "services/cli/fit_auto.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/file.h"
#include "engine/base/sha256.h"
#include "engine/base/status.h"
#include "engine/eval/needle_measure.h"
#include "engine/eval/sweep.h"
#include "engine/eval/text.h"
#include "engine/fit/corpus.h"
#include "engine/ridge/manifest.h"
#include "services/common/memory.h"

namespace ridgefill::cli {
namespace {

constexpr int64_t kContinuation = 256;
constexpr char kGroup[] = "Split auto";

std::string Interval(const ridge::SweepFigure& f) {
  const bool loss = f.measure == "nll";
  return loss ? absl::StrFormat("%+.4f [%+.4f, %+.4f]", f.mean, f.low, f.high)
              : absl::StrFormat("%.3f [%.3f, %.3f] of %d", f.mean, f.low, f.high, f.count);
}

}  // namespace

void AutoFlags::AddTo(CLI::App& command) {
  text.documents = 16;
  const char* const group = kGroup;
  command
      .add_option("--candidates", candidates,
                  "Splits to fit and measure (default: at most eight, from the middle of the model to three "
                  "quarters)")
      ->delimiter(',')
      ->type_name("S,...")
      ->group(group);
  command
      .add_option(
          "--max_loss", bounds.max_loss,
          "Bound of the paired loss on the tokens after a prompt, nats per token: upper end of its 95 % "
          "interval")
      ->capture_default_str()
      ->type_name("X")
      ->group(group);
  command
      .add_option(
          "--min_needle", bounds.min_needle,
          "Bound of the needles found, in each task, of those that exact finds; 0: none are asked for")
      ->capture_default_str()
      ->type_name("X")
      ->group(group);
  command.add_option("--heldout", text.corpus, "Folder of .txt files to measure on, none of them fitted")
      ->capture_default_str()
      ->type_name("DIR")
      ->group(group);
  command
      .add_option("--documents", text.documents,
                  "Documents to measure the loss on, at least 5, or all there are")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->group(group);
  command.add_option("--length", text.length, "Their tokens, the last 256 forced after the prompt")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  command.add_option("--tasks", tasks, "Needle tasks, as in `ridgefill eval needle`")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("TASK,...")
      ->group(group);
  command.add_option("--items", items, "Needle items of each task")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->group(group);
  command.add_option("--needle_length", needle_length, "Tokens of a needle item")
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
}

std::string AutoFlags::FirstGiven(const CLI::App& command) {
  for (const CLI::Option* const option : command.get_options()) {
    if (option->get_group() == kGroup && option->count() > 0) return option->get_name();
  }
  return "";
}

std::vector<int> CandidateSplits(int layers) {
  constexpr int kMost = 8;
  const int first = layers / 2, last = std::min(first + layers / 4, layers - 2);
  const int step = (last - first + kMost) / kMost;
  std::vector<int> out;
  for (int split = std::max(1, first); split <= last; split += step) out.push_back(split);
  return out;
}

absl::StatusOr<SplitSearch> SplitSearch::Prepare(const common::LoadedModel& model, const AutoFlags& flags,
                                                 const fit::FitOptions& options) {
  const int64_t tail = options.tail_default;
  SplitSearch out(model, flags, tail);
  RF_RETURN_IF_ERROR(out.CheckCandidates(options));
  EvalText text = flags.text;
  text.context = model.context_tokens;
  RF_ASSIGN_OR_RETURN(out.documents_, EvalDocuments(*model.tokenizer, text));
  RF_RETURN_IF_ERROR(eval::CheckDocuments(out.documents_, {tail}, kContinuation));
  if (const auto documents = static_cast<int64_t>(out.documents_.size()); documents < kFewestDocuments) {
    return base::Error(absl::StatusCode::kInvalidArgument, "FIT_DOCUMENTS",
                       absl::StrCat("an interval needs at least ", kFewestDocuments,
                                    " documents to measure the loss on, there are ", documents));
  }
  RF_ASSIGN_OR_RETURN(const auto files, fit::TextFiles(text.corpus));
  for (const std::string& file : files) {
    RF_ASSIGN_OR_RETURN(const std::string bytes, base::ReadFile(file));
    out.measured_text_[base::Sha256Hex(bytes)] = file;
  }
  if (flags.bounds.min_needle > 0) RF_RETURN_IF_ERROR(out.MakeNeedles());
  return out;
}

absl::Status SplitSearch::CheckCandidates(const fit::FitOptions& options) const {
  const model::ModelConfig& config = model_.model->config();
  if (options.splits.empty()) {
    return base::Error(absl::StatusCode::kInvalidArgument, "FIT_SPLIT",
                       absl::StrCat("a model of ", config.layers,
                                    " layers has no split to choose: it takes three layers at least"));
  }
  std::vector<ridge::MapSetManifest> sets;
  for (const int split : options.splits) {
    ridge::MapSetManifest& set = sets.emplace_back();
    set.layers = config.layers, set.hidden = config.hidden, set.kv_width = config.kv_width();
    set.split = split;
    set.mixture = options.mixture, set.previous_row = options.previous_row;
  }
  return common::CheckMapsFit(sets, *model_.backend, common::AvailableMemory());
}

absl::Status SplitSearch::MakeNeedles() {
  RF_ASSIGN_OR_RETURN(const std::string text, CorpusText(flags_.text.corpus));
  for (const std::string& task : flags_.tasks) {
    eval::NeedleOptions asked;
    asked.length = flags_.needle_length;
    asked.tail = tail_;
    asked.items = flags_.items;
    asked.seed = flags_.text.seed;
    RF_ASSIGN_OR_RETURN(const auto options, MakeNeedleOptions(task, asked, model_.context_tokens));
    RF_ASSIGN_OR_RETURN(auto items, eval::MakeNeedles(*model_.tokenizer, text, options));
    needles_.emplace_back(options, std::move(items));
  }
  return absl::OkStatus();
}

// All candidates beside each other: one exact run of a document or item serves them all.
absl::StatusOr<std::vector<eval::Record>> SplitSearch::Measure(const std::vector<std::string>& folders,
                                                               const std::string& out,
                                                               const std::string& home) const {
  RF_ASSIGN_OR_RETURN(const auto sets, LoadMapSets(model_, home, folders));
  std::vector<eval::Record> records;
  MeasureRun run = {model_, {}, out, [&](const eval::Record& record) {
                      records.push_back(record);
                      return absl::OkStatus();
                    }};
  eval::SweepOptions options;
  std::vector<eval::Variant> variants;
  for (const auto& maps : sets) {
    const int split = maps->manifest().split;
    run.maps.push_back(maps.get());
    options.maps[split] = maps->manifest().digest;
    for (const eval::Fill fill : {eval::Fill::kIdentity, eval::Fill::kRidge}) {
      variants.push_back({fill, ridge::Selector::kNone, 0, split});
    }
  }
  std::reverse(variants.begin(), variants.end());  // higher splits first
  options.tails = {tail_};
  options.continuation = kContinuation;
  options.runs = 0;
  options.seed = flags_.text.seed;
  RF_ASSIGN_OR_RETURN(auto sweep, eval::SweepMeasure::Create(documents_, options));
  Measures measures;
  measures.push_back(std::make_unique<eval::SweepMeasure>(std::move(sweep)));
  for (const auto& [needle_options, items] : needles_) {
    measures.push_back(std::make_unique<eval::NeedleMeasure>(items, needle_options, variants));
  }
  RF_RETURN_IF_ERROR(RunMeasures(run, measures));
  return records;
}

absl::StatusOr<std::vector<ridge::SweptSplit>> SplitSearch::Run(const std::vector<fit::FittedSet>& sets,
                                                                const std::string& out,
                                                                const std::string& home) const {
  std::vector<std::string> folders;
  folders.reserve(sets.size());
  for (const fit::FittedSet& set : sets) folders.push_back(set.folder);
  const std::string file = out + "/sweep.jsonl";
  std::remove(file.c_str());  // what of it is this search's comes again, from the items in FILE.partial
  RF_ASSIGN_OR_RETURN(const std::vector<eval::Record> records, Measure(folders, file, home));
  std::vector<ridge::SweptSplit> swept = eval::SweptSplits(records);
  const absl::Status choice = eval::ChooseSplit(flags_.bounds, swept);
  for (const std::string& folder : folders) RF_RETURN_IF_ERROR(ridge::StoreSweep(folder, swept));
  std::remove((file + ".partial").c_str());
  if (!choice.ok()) {
    return base::WithContext(choice, absl::StrCat("the sets of all candidates are kept in ", out));
  }
  return swept;
}

void PrintSweep(const std::vector<ridge::SweptSplit>& sweep) {
  if (sweep.empty()) return;
  std::printf("\n%5s", "split");
  for (const ridge::SweepFigure& f : sweep.front().figures) {
    std::printf("  %-30s", absl::StrFormat("%s %s, %d/%d", f.measure, f.cell, f.length, f.tail).c_str());
  }
  std::printf("\n");
  for (const ridge::SweptSplit& swept : sweep) {
    std::printf("%5d", swept.split);
    for (const ridge::SweepFigure& f : swept.figures) std::printf("  %-30s", Interval(f).c_str());
    std::printf("  %s\n", swept.chosen ? "chosen" : swept.within ? "within bounds" : "out of bounds");
  }
}

}  // namespace ridgefill::cli
