// Percentile bootstrap of a mean over documents (Efron 1979). Pure.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace ridgefill::eval {

struct Interval {
  double mean = 0;
  double low = 0, high = 0;  // 95 %
};

// Resampled with replacement; the same values and seed give the same interval everywhere. Zeros for no
// values.
Interval Bootstrap(absl::Span<const double> values, int resamples = 10000, uint64_t seed = 0);

}  // namespace ridgefill::eval
