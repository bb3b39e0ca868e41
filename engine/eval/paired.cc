#include "engine/eval/paired.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"

namespace ridgefill::eval {

Interval Wilson(int64_t successes, int64_t trials) {
  if (trials == 0) return {};
  constexpr double kZ = 1.959963984540054;
  const double n = static_cast<double>(trials), p = static_cast<double>(successes) / n, z2 = kZ * kZ / n;
  const double centre = (p + z2 / 2) / (1 + z2);
  const double half = kZ / (1 + z2) * std::sqrt(p * (1 - p) / n + z2 / (4 * n));
  return {p, std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

McNemar ComparePaired(const std::vector<bool>& first, const std::vector<bool>& second) {
  RF_CHECK(first.size() == second.size());
  McNemar out;
  for (size_t i = 0; i < first.size(); ++i) {
    out.lost += first[i] && !second[i];
    out.gained += !first[i] && second[i];
  }
  // 2 P(X <= min) for X binomial of `n` fair throws, by logarithms of factorials.
  const double n = static_cast<double>(out.lost + out.gained);
  double tail = 0;
  for (int64_t k = 0; k <= std::min(out.lost, out.gained); ++k) {
    const double x = static_cast<double>(k);
    tail += std::exp(std::lgamma(n + 1) - std::lgamma(x + 1) - std::lgamma(n - x + 1) - n * std::log(2.0));
  }
  out.p = std::min(1.0, 2 * tail);
  return out;
}

}  // namespace ridgefill::eval
