// The split by measuring (docs/method.md, "The split"): of several candidates the smallest whose losses stay
// within bounds. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/eval/json_log.h"
#include "engine/ridge/sweep.h"

namespace ridgefill::eval {

struct SplitBounds {
  double max_loss = 0.02;    // nats per token: the upper end of the continuation's interval
  double min_needle = 0.95;  // of the items that exact solves, in each task; 0: needles do not count
};

// By split, from the records of SweepMeasure and NeedleMeasure: the ridge fill in SPEED alone.
std::vector<ridge::SweptSplit> SweptSplits(absl::Span<const Record> records);

// What keeps a split out of the bounds, for people; empty when nothing does.
std::string OutOfBounds(const ridge::SweptSplit& swept, const SplitBounds& bounds);

// Marks those within the bounds and the smallest of them as chosen. FAILED_PRECONDITION (FIT_NO_SPLIT) when
// there is none: with what keeps each one out, and the bounds that the last would need.
absl::Status ChooseSplit(const SplitBounds& bounds, std::vector<ridge::SweptSplit>& candidates);

}  // namespace ridgefill::eval
