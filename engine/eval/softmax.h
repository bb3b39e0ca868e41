// The softmax of a row of logits, and the divergence of two.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace ridgefill::eval {

struct Softmax {
  double log_sum = 0;  // log of the sum of exponentials
  int64_t best = 0;    // ties: the lowest id
};
Softmax SoftmaxOf(absl::Span<const float> logits);

// KL(p || q), of p and q the softmax of two rows of logits.
double Kl(absl::Span<const float> p, const Softmax& p_softmax, absl::Span<const float> q,
          const Softmax& q_softmax);

}  // namespace ridgefill::eval
