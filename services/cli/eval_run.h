// What runs measures, shared by `ridgefill eval` and `ridgefill fit --split auto`. Internal to services/cli.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/eval/measure.h"
#include "engine/eval/needle.h"
#include "engine/ridge/device_maps.h"
#include "engine/ridge/fill_plan.h"
#include "engine/tokenizer/tokenizer.h"
#include "services/cli/command.h"
#include "services/common/loaded_model.h"

namespace ridgefill::cli {

// INVALID_ARGUMENT (EVAL_FLAG).
absl::Status BadFlag(absl::string_view message);
// The value of an enumeration whose Name() this is.
template <typename T, size_t kValues>
absl::StatusOr<T> Parse(const char* flag, const std::string& name, const T (&values)[kValues]) {
  std::string allowed;
  for (const T value : values) {
    if (name == Name(value)) return value;
    absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", Name(value));
  }
  return BadFlag(absl::StrCat(flag, " takes ", allowed, "; got \"", name, "\""));
}

struct EvalText {
  std::string corpus = "tests/data/corpus/heldout";
  int64_t length = 4096;
  int64_t documents = 60;
  uint64_t seed = 7;
  int64_t context = 0;  // the model's
};
// INVALID_ARGUMENT (EVAL_LENGTH) above the model's context.
absl::Status CheckEvalLength(int64_t length, int64_t context);
// As many documents as were asked for, or as there are, which is said on standard error.
absl::StatusOr<std::vector<std::vector<int32_t>>> EvalDocuments(const tokenizer::Tokenizer& tokenizer,
                                                                const EvalText& text);
// All files of a folder, one after the other: what hides the needles.
absl::StatusOr<std::string> CorpusText(const std::string& folder);

// What QUALITY may select by.
inline constexpr ridge::Selector kSelectors[] = {ridge::Selector::kAttention, ridge::Selector::kProbe,
                                                 ridge::Selector::kRandom, ridge::Selector::kRarity};

// One cell of needles: the task by name, the rest as asked, but that below 2,048 tokens a tail has at most
// 256 rows, or there would be next to no bulk. EVAL_FLAG, EVAL_LENGTH.
absl::StatusOr<eval::NeedleOptions> MakeNeedleOptions(const std::string& task,
                                                      const eval::NeedleOptions& asked, int64_t context);

using Measures = std::vector<std::unique_ptr<eval::Measure>>;

struct MeasureRun {
  const common::LoadedModel& model;
  std::vector<const ridge::DeviceMaps*> maps;  // by split
  // Records are appended here, and items to FILE.partial; empty: records go to standard output.
  std::string out;
  std::function<absl::Status(const eval::Record&)> emit;  // beside the table; may be empty
};
absl::Status RunMeasures(const MeasureRun& run, const Measures& measures);

// Map sets of different splits for a model that was loaded without, in the order of their splits.
// EVAL_SPLITS when two have one split; CheckMapsFit (services/common/loaded_model.h) before any is loaded.
absl::StatusOr<std::vector<std::unique_ptr<ridge::DeviceMaps>>> LoadMapSets(
    const common::LoadedModel& model, const std::string& home, const std::vector<std::string>& names);

// `ridgefill eval sweep`.
void AddEvalSweep(CLI::App& eval, Run& run);

}  // namespace ridgefill::cli
