#include "services/cli/eval_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/file.h"
#include "engine/base/sha256.h"
#include "engine/base/status.h"
#include "engine/eval/json_log.h"
#include "engine/fit/corpus.h"
#include "services/cli/commit.h"
#include "services/cli/eval_output.h"
#include "services/common/memory.h"

namespace ridgefill::cli {
namespace {

eval::Header MakeHeader(const MeasureRun& run) {
  eval::Header header;
  header.model = run.model.name;
  header.weights = run.model.hello.model.weights_digest;
  header.backend = run.model.backend->capabilities().name;
  header.isa = run.model.backend->capabilities().isa;
  header.commit = Commit();
  std::string digests;
  for (const ridge::DeviceMaps* maps : run.maps) {
    absl::StrAppend(&digests, maps->manifest().digest);
    header.sets[maps->manifest().split] = maps->manifest().digest;
  }
  const bool one = run.maps.size() == 1;
  header.maps = one ? digests : base::Sha256Hex(digests);
  header.split = one ? run.maps.front()->manifest().split : 0;
  return header;
}

// Seconds of an exact run of a short prompt for each of its rows, measured.
absl::StatusOr<double> SecondsPerRow(eval::Subject& subject, int64_t rows) {
  absl::Duration took;
  for (int turn = 0; turn < 2; ++turn) {  // the first one warms up
    const std::vector<int32_t> ids(rows, 1);
    const absl::Time start = absl::Now();
    RF_RETURN_IF_ERROR(subject.Lower(ids));
    RF_RETURN_IF_ERROR(subject.RunExact());
    took = absl::Now() - start;
  }
  return absl::ToDoubleSeconds(took) / static_cast<double>(rows);
}

// Attention makes a row of a long prompt dearer: twice as dear at some 8,000 tokens of a small model.
absl::Status PrintEstimate(const Measures& measures, eval::Subject& subject, const eval::RunOptions& run) {
  constexpr int64_t kProbe = 1024;
  const int64_t probe = std::min(kProbe, subject.max_tokens());
  const auto growth = [](int64_t tokens) { return 1 + static_cast<double>(tokens) / 8192; };
  double rows = 0;
  int64_t items = 0;
  for (const auto& measure : measures) {
    for (const int64_t item : eval::MissingItems(*measure, run)) {
      rows += measure->Work(subject, item) * growth(measure->tokens(item)) / growth(probe);
      ++items;
    }
  }
  if (items == 0) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const double seconds, SecondsPerRow(subject, probe));
  std::fprintf(stderr, "%lld documents and items to run, about %.0f minutes\n", static_cast<long long>(items),
               std::ceil(rows * seconds / 60));
  return absl::OkStatus();
}

int64_t LongestItem(const Measures& measures) {
  int64_t out = 0;
  for (const auto& measure : measures) {
    for (int64_t i = 0; i < measure->items(); ++i) out = std::max(out, measure->tokens(i));
  }
  return out;
}

}  // namespace

absl::Status BadFlag(absl::string_view message) {
  return base::Error(absl::StatusCode::kInvalidArgument, "EVAL_FLAG", message);
}

absl::Status CheckEvalLength(int64_t length, int64_t context) {
  if (length <= context) return absl::OkStatus();
  return base::Error(
      absl::StatusCode::kInvalidArgument, "EVAL_LENGTH",
      absl::StrCat("a length of ", length, " tokens is above the model's context of ", context));
}

absl::StatusOr<std::vector<std::vector<int32_t>>> EvalDocuments(const tokenizer::Tokenizer& tokenizer,
                                                                const EvalText& text) {
  RF_RETURN_IF_ERROR(CheckEvalLength(text.length, text.context));
  RF_ASSIGN_OR_RETURN(auto corpus, fit::LoadCorpus(tokenizer, text.corpus, {text.length, text.seed}));
  if (static_cast<int64_t>(corpus.size()) < text.documents) {
    std::fprintf(stderr, "%s has %zu documents of %lld tokens, %lld were asked for\n", text.corpus.c_str(),
                 corpus.size(), static_cast<long long>(text.length), static_cast<long long>(text.documents));
  }
  corpus.resize(std::min<size_t>(corpus.size(), text.documents));
  std::vector<std::vector<int32_t>> out;
  out.reserve(corpus.size());
  for (fit::Document& document : corpus) out.push_back(std::move(document.ids));
  return out;
}

absl::StatusOr<std::string> CorpusText(const std::string& folder) {
  std::string text;
  RF_ASSIGN_OR_RETURN(const auto files, fit::TextFiles(folder));
  for (const std::string& file : files) {
    RF_ASSIGN_OR_RETURN(const std::string bytes, base::ReadFile(file));
    absl::StrAppend(&text, bytes, "\n");
  }
  return text;
}

absl::StatusOr<eval::NeedleOptions> MakeNeedleOptions(const std::string& task,
                                                      const eval::NeedleOptions& asked, int64_t context) {
  constexpr int64_t kShort = 2048, kShortTail = 256;
  RF_RETURN_IF_ERROR(CheckEvalLength(asked.length, context));
  eval::NeedleOptions out = asked;
  RF_ASSIGN_OR_RETURN(out.task, Parse("--tasks", task, eval::kAllTasks));
  if (out.length < kShort) out.tail = std::min(out.tail, kShortTail);
  return out;
}

absl::Status RunMeasures(const MeasureRun& run, const Measures& measures) {
  RF_ASSIGN_OR_RETURN(const auto records, eval::JsonLog::Open(run.out));
  RF_ASSIGN_OR_RETURN(const auto items, eval::JsonLog::Open(run.out.empty() ? "" : run.out + ".partial"));
  eval::Subject::Options options;
  options.max_tokens = LongestItem(measures);
  RF_ASSIGN_OR_RETURN(const auto subject, eval::Subject::Create(*run.model.model, run.maps, options));
  EvalProgress progress;
  EvalTable table;
  eval::RunOptions each;
  each.header = MakeHeader(run);
  each.items = items.get();
  each.records = records.get();
  each.progress = std::ref(progress);
  each.emit = [&](const eval::Record& record) {
    table.Add(record);
    if (run.out.empty()) std::printf("%s\n", record.dump().c_str());
    std::fflush(stdout);
    return run.emit ? run.emit(record) : absl::OkStatus();
  };
  RF_RETURN_IF_ERROR(PrintEstimate(measures, *subject, each));
  for (const auto& measure : measures) RF_RETURN_IF_ERROR(eval::RunMeasure(*measure, *subject, each));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::unique_ptr<ridge::DeviceMaps>>> LoadMapSets(
    const common::LoadedModel& model, const std::string& home, const std::vector<std::string>& names) {
  std::map<int, std::unique_ptr<ridge::MapSet>> sets;  // by split
  for (const std::string& name : names) {
    RF_ASSIGN_OR_RETURN(auto set, common::LoadMapSet(home, name, model.hello.model));
    if (set == nullptr) {
      return base::Error(absl::StatusCode::kInvalidArgument, "EVAL_SPLITS",
                         absl::StrCat("\"", name, "\" names no map set"));
    }
    const int split = set->manifest().split;
    if (!sets.emplace(split, std::move(set)).second) {
      return base::Error(absl::StatusCode::kInvalidArgument, "EVAL_SPLITS",
                         absl::StrCat("two map sets have split ", split, "; the second is ", name));
    }
  }
  std::vector<ridge::MapSetManifest> manifests;
  manifests.reserve(sets.size());
  for (const auto& [split, set] : sets) manifests.push_back(set->manifest());
  RF_RETURN_IF_ERROR(common::CheckMapsFit(manifests, *model.backend, common::AvailableMemory()));
  std::vector<std::unique_ptr<ridge::DeviceMaps>> out;
  for (const auto& [split, set] : sets) {
    RF_ASSIGN_OR_RETURN(auto maps, ridge::DeviceMaps::Load(*set, *model.backend));
    out.push_back(std::move(maps));
  }
  return out;
}

}  // namespace ridgefill::cli
