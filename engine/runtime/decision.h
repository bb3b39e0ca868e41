// What a FillDecision asks of the engines. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/ridge/fill_plan.h"

namespace ridgefill::runtime {

// INVALID_ARGUMENT (DECISION_...) for one that means nothing for a model of `layers` layers, UNIMPLEMENTED
// for a late pass on prefill in another mode than EXACT.
absl::Status CheckDecision(const ridge::FillDecision& decision, int layers);

// INVALID_ARGUMENT (TOKEN_ID_RANGE) about the first id outside [0, vocab).
absl::Status CheckTokenIds(absl::Span<const int32_t> tokens, int vocab);

// True when the decode worker fills: late K and V of bulk rows do not travel.
inline bool FillsOnDecode(const ridge::FillDecision& decision) {
  return decision.wire_form == ridge::WireForm::kHidden;
}

// Where a prompt's work divides between the workers.
struct WorkSplit {
  // First layer that the exact rows still have to pass on decode: split, 0 for local, L after a late pass on
  // prefill.
  int late_begin = 0;
  int64_t tail_begin = 0;  // rows below it are bulk or outliers
};
WorkSplit SplitWork(const ridge::FillDecision& decision, int layers, int64_t tokens);

}  // namespace ridgefill::runtime
