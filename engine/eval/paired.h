// Figures of yes-or-no outcomes, alone and paired. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/eval/bootstrap.h"

namespace ridgefill::eval {

// Wilson's 95 % interval of a proportion (1927). Zeros for no trials.
Interval Wilson(int64_t successes, int64_t trials);

// McNemar's test, exact and two-sided: of the items that only one of two runs solves, how likely a split at
// least this uneven is if neither is better. 1 when they differ nowhere.
struct McNemar {
  int64_t lost = 0;    // only the first run solves them
  int64_t gained = 0;  // only the second
  double p = 1;
};
McNemar ComparePaired(const std::vector<bool>& first, const std::vector<bool>& second);

}  // namespace ridgefill::eval
