// What is measured: a model with a map set, or with several of different splits, run exactly and in the
// variants that a report compares.
//
// One document at a time: Lower once, RunExact once, then RunFilled for each variant and tail, those of
// higher splits first; after each run its rows are read from forward(). Not thread-safe; model and maps must
// outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/eval/filled_forward.h"
#include "engine/model/model.h"
#include "engine/ridge/device_maps.h"
#include "engine/ridge/fill_plan.h"
#include "engine/runtime/fill_pass.h"

namespace ridgefill::eval {

enum class Fill : uint8_t { kRidge, kIdentity };
absl::string_view Name(Fill fill);  // "ridge", "identity"

// How the bulk of a prompt gets its late K and V.
struct Variant {
  Fill fill = Fill::kRidge;
  // Which bulk rows run exactly beside tail and outliers, and the share of the bulk that may.
  ridge::Selector selector = ridge::Selector::kNone;
  float share = 0;
  int split = 0;  // of the map set; 0: the subject has one alone

  ridge::Mode mode() const {
    return selector == ridge::Selector::kNone ? ridge::Mode::kSpeed : ridge::Mode::kQuality;
  }
};

// Of a document: a prompt, and tokens forced after it. Rows from `tail_begin()` on are exact, the forced ones
// too, as generated rows are.
struct Shape {
  int64_t prompt_tokens = 0;
  int64_t tail = 0;
  int64_t tail_begin() const { return prompt_tokens - tail; }
};

class Subject {
 public:
  struct Options {
    int64_t max_tokens = 0;  // of a document, at most
    int64_t chunk_rows = 1024;
  };
  static absl::StatusOr<std::unique_ptr<Subject>> Create(const model::Model& model,
                                                         const ridge::DeviceMaps& maps,
                                                         const Options& options) {
    const ridge::DeviceMaps* const one = &maps;
    return Create(model, absl::MakeConstSpan(&one, 1), options);
  }
  // In the order of their splits, no two of one split.
  static absl::StatusOr<std::unique_ptr<Subject>> Create(const model::Model& model,
                                                         absl::Span<const ridge::DeviceMaps* const> maps,
                                                         const Options& options);

  // The lower layers of a document, and what the last rows of its prompt look at where that is asked for:
  // before its runs.
  absl::Status Lower(absl::Span<const int32_t> ids, int64_t prompt_tokens = 0);
  absl::Status RunExact();
  absl::Status RunFilled(const Variant& variant, const Shape& shape);
  // What the last RunFilled ran exactly.
  const ridge::FillPlan& plan() const { return plan_; }

  FilledForward& forward() { return *forward_; }
  const model::Model& model() const { return model_; }
  // Split 0: there is one set alone.
  const ridge::DeviceMaps& maps(int split = 0) const { return *At(split).maps; }
  const ridge::MapSetManifest& manifest(int split = 0) const { return maps(split).manifest(); }
  int64_t max_tokens() const { return max_tokens_; }

 private:
  struct Set {
    const ridge::DeviceMaps* maps = nullptr;
    std::map<Fill, std::unique_ptr<runtime::FillPass>> fills;
  };

  Subject(const model::Model& model, int64_t max_tokens) : model_(model), max_tokens_(max_tokens) {}
  const Set& At(int split) const;

  absl::StatusOr<ridge::FillPlan> MakePlan(const Variant& variant, const Shape& shape);
  std::vector<int32_t> Outliers(int split) const;

  const model::Model& model_;
  const int64_t max_tokens_;
  ridge::FillPlan plan_;
  std::vector<int32_t> ids_;
  std::unique_ptr<FilledForward> forward_;
  std::map<int, Set> sets_;  // by split
};

}  // namespace ridgefill::eval
