#include "engine/eval/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/base/rng.h"

namespace ridgefill::eval {
namespace {

// Linear between the two nearest order statistics.
double Quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Interval Bootstrap(absl::Span<const double> values, int resamples, uint64_t seed) {
  if (values.empty() || resamples < 1) return {};
  const double n = static_cast<double>(values.size());
  base::Rng rng(seed);
  std::vector<double> means(resamples);
  for (double& mean : means) {
    for (size_t i = 0; i < values.size(); ++i) mean += values[rng.NextBelow(values.size())];
    mean /= n;
  }
  std::sort(means.begin(), means.end());
  return {std::accumulate(values.begin(), values.end(), 0.0) / n, Quantile(means, 0.025),
          Quantile(means, 0.975)};
}

}  // namespace ridgefill::eval
