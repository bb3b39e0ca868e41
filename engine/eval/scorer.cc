#include "engine/eval/scorer.h"

#include <algorithm>
#include <thread>

#include "engine/base/check.h"
#include "engine/base/status.h"

namespace ridgefill::eval {
namespace {

using kernels::TensorView;

constexpr int64_t kLogitRows = 64;  // rows whose logits are held at once, at most

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

absl::Status Scorer::ForRows(const TensorView& hidden,
                             absl::FunctionRef<void(int64_t, absl::Span<const float>)> row) {
  const int64_t rows = hidden.dim(0), vocab = pass_.model().config().vocab;
  const int64_t threads = std::max(1, pass_.backend().capabilities().threads);
  for (int64_t begin = 0; begin < rows; begin += logits_.view().dim(0)) {
    const int64_t count = std::min(logits_.view().dim(0), rows - begin);
    RF_ASSIGN_OR_RETURN(const std::vector<float> values, Logits(hidden.Rows(begin, count)));
    const auto part = [&](int64_t thread) {
      for (int64_t i = thread; i < count; i += threads)
        row(begin + i, absl::MakeConstSpan(values).subspan(i * vocab, vocab));
    };
    std::vector<std::thread> others;
    for (int64_t thread = 1; thread < std::min(threads, count); ++thread) others.emplace_back(part, thread);
    part(0);
    for (std::thread& other : others) other.join();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenScore>> Scorer::Score(const TensorView& hidden,
                                                      absl::Span<const int32_t> tokens) {
  RF_CHECK(hidden.dim(0) == static_cast<int64_t>(tokens.size()));
  std::vector<TokenScore> out(tokens.size());
  RF_RETURN_IF_ERROR(ForRows(hidden, [&](int64_t i, absl::Span<const float> logits) {
    const Softmax softmax = SoftmaxOf(logits);
    out[i] = {softmax.log_sum - logits[tokens[i]], softmax.best == tokens[i]};
  }));
  return out;
}

std::vector<TokenScore> Scorer::Score(const KeptLogits& kept, absl::Span<const int32_t> tokens) {
  RF_CHECK(kept.rows() == static_cast<int64_t>(tokens.size()));
  std::vector<TokenScore> out;
  out.reserve(tokens.size());
  for (int64_t i = 0; i < kept.rows(); ++i) {
    const Softmax& softmax = kept.softmax[i];
    out.push_back({softmax.log_sum - kept.Row(i)[tokens[i]], softmax.best == tokens[i]});
  }
  return out;
}

absl::StatusOr<KeptLogits> Scorer::Keep(const TensorView& hidden) {
  KeptLogits kept;
  kept.vocab = pass_.model().config().vocab;
  kept.softmax.resize(hidden.dim(0));
  kept.logits.resize(hidden.dim(0) * kept.vocab);
  RF_RETURN_IF_ERROR(ForRows(hidden, [&](int64_t i, absl::Span<const float> logits) {
    kept.softmax[i] = SoftmaxOf(logits);
    std::copy(logits.begin(), logits.end(), kept.logits.begin() + i * kept.vocab);
  }));
  return kept;
}

absl::StatusOr<std::vector<PairScore>> Scorer::Compare(const KeptLogits& exact, int64_t begin,
                                                       const TensorView& filled,
                                                       absl::Span<const int32_t> tokens) {
  const int64_t rows = static_cast<int64_t>(tokens.size());
  RF_CHECK(begin >= 0 && begin + rows <= exact.rows() && filled.dim(0) == rows);
  std::vector<PairScore> out(rows);
  RF_RETURN_IF_ERROR(ForRows(filled, [&](int64_t i, absl::Span<const float> q) {
    const Softmax &of_p = exact.softmax[begin + i], of_q = SoftmaxOf(q);
    out[i] = {of_q.log_sum - q[tokens[i]], Kl(exact.Row(begin + i), of_p, q, of_q), of_p.best == of_q.best};
  }));
  return out;
}

}  // namespace ridgefill::eval
