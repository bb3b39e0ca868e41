// `ridgefill fit --split auto`: measures the fitted candidates and picks one. Internal to services/cli.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/eval/needle.h"
#include "engine/eval/split_choice.h"
#include "engine/fit/fit.h"
#include "engine/ridge/sweep.h"
#include "services/cli/eval_run.h"
#include "services/common/loaded_model.h"

namespace CLI {
class App;
}

namespace ridgefill::cli {

struct AutoFlags {
  std::vector<int> candidates;  // empty: CandidateSplits
  eval::SplitBounds bounds;
  EvalText text;
  int64_t items = 20, needle_length = 1024;
  std::vector<std::string> tasks = {"single", "multi_key"};

  void AddTo(CLI::App& command);
  // Of the flags that AddTo added the first that was given; "" for none.
  static std::string FirstGiven(const CLI::App& command);
};

// At most eight, from the middle of the model to three quarters: 15 to 22 of 30 layers. None below three
// layers.
std::vector<int> CandidateSplits(int layers);

// Not thread-safe; the model must outlive it.
class SplitSearch {
 public:
  // What the candidates will be measured on; before anything is fitted, so that what is wrong shows at once:
  // FIT_DOCUMENTS below kFewestDocuments, and when all candidates' maps will not fit beside each other.
  static absl::StatusOr<SplitSearch> Prepare(const common::LoadedModel& model, const AutoFlags& flags,
                                             const fit::FitOptions& options);
  // A bootstrap over fewer bounds nothing.
  static constexpr int64_t kFewestDocuments = 5;
  // Path by sha256.
  const std::map<std::string, std::string>& measured_text() const { return measured_text_; }

  // Measures the sets, stores the search in each and marks the chosen one, which no other set in
  // <out>/split-<S> is any more. Records go to <out>/sweep.jsonl, in place of an earlier search's.
  // FIT_NO_SPLIT when none is within the bounds; the search is stored then as well.
  absl::StatusOr<std::vector<ridge::SweptSplit>> Run(const std::vector<fit::FittedSet>& sets,
                                                     const std::string& out, const std::string& home) const;

 private:
  SplitSearch(const common::LoadedModel& model, const AutoFlags& flags, int64_t tail)
      : model_(model), flags_(flags), tail_(tail) {}
  absl::Status CheckCandidates(const fit::FitOptions& options) const;
  absl::Status MakeNeedles();
  absl::StatusOr<std::vector<eval::Record>> Measure(const std::vector<std::string>& folders,
                                                    const std::string& out, const std::string& home) const;

  const common::LoadedModel& model_;
  const AutoFlags flags_;
  const int64_t tail_;
  std::map<std::string, std::string> measured_text_;
  std::vector<std::vector<int32_t>> documents_;
  std::vector<std::pair<eval::NeedleOptions, std::vector<eval::NeedleItem>>> needles_;  // by task
};

// One line for each split that a search measured, on standard output.
void PrintSweep(const std::vector<ridge::SweptSplit>& sweep);

}  // namespace ridgefill::cli
