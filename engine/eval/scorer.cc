#include "engine/eval/scorer.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/base/status.h"

namespace ridgefill::eval {
namespace {

using kernels::TensorView;

constexpr int64_t kLogitRows = 64;  // rows whose logits are held at once, at most

struct Softmax {
  double log_sum = 0;  // log of the sum of exponentials
  int64_t best = 0;
};

Softmax SoftmaxOf(absl::Span<const float> logits) {
  const auto top = std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - *top);
  return {std::log(sum) + *top, top - logits.begin()};
}

// KL(p || q), of p and q the softmax of two rows of logits.
double Kl(absl::Span<const float> p, const Softmax& p_softmax, absl::Span<const float> q,
          const Softmax& q_softmax) {
  const float p_log_sum = static_cast<float>(p_softmax.log_sum);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i] - p_log_sum) * (p[i] - q[i]);
  // The rest of log p - log q is the same for all tokens. Rounding may leave a trace below zero.
  return std::max(0.0, sum - (p_softmax.log_sum - q_softmax.log_sum));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Scorer>> Scorer::Create(runtime::SequencePass& pass) {
  std::unique_ptr<Scorer> out(new Scorer(pass));
  RF_ASSIGN_OR_RETURN(out->logits_,
                      pass.backend().Allocate(kernels::DType::kF32, {std::min(kLogitRows, pass.max_rows()),
                                                                     pass.model().config().vocab}));
  return out;
}

absl::StatusOr<std::vector<float>> Scorer::Logits(const TensorView& hidden) {
  const TensorView logits = logits_.view().Rows(0, hidden.dim(0));
  RF_RETURN_IF_ERROR(
      pass_.model().Logits(pass_.stream(), pass_.workspace(), kernels::Phase::kPrompt, hidden, logits));
  return pass_.Floats(logits);
}

absl::StatusOr<std::vector<TokenScore>> Scorer::Score(const TensorView& hidden,
                                                      absl::Span<const int32_t> tokens) {
  const int64_t rows = static_cast<int64_t>(tokens.size()), vocab = pass_.model().config().vocab;
  RF_CHECK(hidden.dim(0) == rows);
  std::vector<TokenScore> out;
  out.reserve(rows);
  for (int64_t begin = 0; begin < rows; begin += logits_.view().dim(0)) {
    const int64_t count = std::min(logits_.view().dim(0), rows - begin);
    RF_ASSIGN_OR_RETURN(const std::vector<float> values, Logits(hidden.Rows(begin, count)));
    for (int64_t i = 0; i < count; ++i) {
      const auto row = absl::MakeConstSpan(values).subspan(i * vocab, vocab);
      const Softmax softmax = SoftmaxOf(row);
      const int32_t token = tokens[begin + i];
      out.push_back({softmax.log_sum - row[token], softmax.best == token});
    }
  }
  return out;
}

absl::StatusOr<std::vector<PairScore>> Scorer::Compare(const TensorView& exact, const TensorView& filled,
                                                       absl::Span<const int32_t> tokens) {
  const int64_t rows = static_cast<int64_t>(tokens.size()), vocab = pass_.model().config().vocab;
  RF_CHECK(exact.dim(0) == rows && filled.dim(0) == rows);
  std::vector<PairScore> out;
  out.reserve(rows);
  for (int64_t begin = 0; begin < rows; begin += logits_.view().dim(0)) {
    const int64_t count = std::min(logits_.view().dim(0), rows - begin);
    RF_ASSIGN_OR_RETURN(const std::vector<float> all_p, Logits(exact.Rows(begin, count)));
    RF_ASSIGN_OR_RETURN(const std::vector<float> all_q, Logits(filled.Rows(begin, count)));
    for (int64_t i = 0; i < count; ++i) {
      const auto p = absl::MakeConstSpan(all_p).subspan(i * vocab, vocab);
      const auto q = absl::MakeConstSpan(all_q).subspan(i * vocab, vocab);
      const Softmax of_p = SoftmaxOf(p), of_q = SoftmaxOf(q);
      out.push_back({of_q.log_sum - q[tokens[begin + i]], Kl(p, of_p, q, of_q), of_p.best == of_q.best});
    }
  }
  return out;
}

}  // namespace ridgefill::eval
