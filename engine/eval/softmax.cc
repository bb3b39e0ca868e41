#include "engine/eval/softmax.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

namespace ridgefill::eval {
namespace {

using Floats = Eigen::Map<const Eigen::ArrayXf>;
constexpr Eigen::Index kBlock = 1024;  // summed in f32

template <typename F>
double SumOfBlocks(Eigen::Index count, F f) {
  double sum = 0;
  for (Eigen::Index at = 0; at < count; at += kBlock) {
    sum += static_cast<double>(f(at, std::min(kBlock, count - at)));
  }
  return sum;
}

}  // namespace

Softmax SoftmaxOf(absl::Span<const float> logits) {
  const Floats row(logits.data(), static_cast<Eigen::Index>(logits.size()));
  const auto top = std::max_element(logits.begin(), logits.end());
  const double sum = SumOfBlocks(row.size(), [&](Eigen::Index at, Eigen::Index count) {
    return (row.segment(at, count) - *top).exp().sum();
  });
  return {std::log(sum) + *top, top - logits.begin()};
}

double Kl(absl::Span<const float> p, const Softmax& p_softmax, absl::Span<const float> q,
          const Softmax& q_softmax) {
  const Floats p_row(p.data(), static_cast<Eigen::Index>(p.size())), q_row(q.data(), p_row.size());
  const float p_log_sum = static_cast<float>(p_softmax.log_sum);
  const double sum = SumOfBlocks(p_row.size(), [&](Eigen::Index at, Eigen::Index count) {
    const auto p_part = p_row.segment(at, count);
    return ((p_part - p_log_sum).exp() * (p_part - q_row.segment(at, count))).sum();
  });
  // The rest of log p - log q is the same for all tokens. Rounding may leave a trace below zero.
  return std::max(0.0, sum - (p_softmax.log_sum - q_softmax.log_sum));
}

}  // namespace ridgefill::eval
