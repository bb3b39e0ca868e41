// From rows that left the last layer to figures: the loss of the token that came, and how far one run's
// distribution is from another's. Logits are computed slice by slice; those that several runs are held
// against may be kept, once for all of them.
//
// Not thread-safe; the pass must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/eval/softmax.h"
#include "engine/runtime/sequence_pass.h"

namespace ridgefill::eval {

struct TokenScore {
  double nll = 0;       // -log p(token)
  bool argmax = false;  // the token is the most likely one (ties: the lowest id)
};

struct PairScore {
  double nll = 0;      // of the filled run
  double kl = 0;       // KL(exact || filled)
  bool agree = false;  // both runs have the same most likely token
};

// The exact run's logits of some rows, on the host.
struct KeptLogits {
  int64_t vocab = 0;
  std::vector<float> logits;     // [rows, vocab]
  std::vector<Softmax> softmax;  // [rows]

  int64_t rows() const { return static_cast<int64_t>(softmax.size()); }
  absl::Span<const float> Row(int64_t row) const {
    return absl::MakeConstSpan(logits).subspan(row * vocab, vocab);
  }
};

class Scorer {
 public:
  static absl::StatusOr<std::unique_ptr<Scorer>> Create(runtime::SequencePass& pass);

  // hidden f32 [1, d] -> [vocab].
  absl::StatusOr<std::vector<float>> Logits(const kernels::TensorView& hidden);
  // hidden f32 [rows, d], tokens [rows]: what followed each row.
  absl::StatusOr<std::vector<TokenScore>> Score(const kernels::TensorView& hidden,
                                                absl::Span<const int32_t> tokens);
  static std::vector<TokenScore> Score(const KeptLogits& kept, absl::Span<const int32_t> tokens);
  // 4 * vocab bytes a row.
  absl::StatusOr<KeptLogits> Keep(const kernels::TensorView& hidden);
  // Rows [begin, begin + tokens.size()) of the exact run, and the same rows of a filled one.
  absl::StatusOr<std::vector<PairScore>> Compare(const KeptLogits& exact, int64_t begin,
                                                 const kernels::TensorView& filled,
                                                 absl::Span<const int32_t> tokens);

 private:
  explicit Scorer(runtime::SequencePass& pass) : pass_(pass) {}
  // row(i, its logits) for every row of `hidden`, on as many threads as the backend has.
  absl::Status ForRows(const kernels::TensorView& hidden,
                       absl::FunctionRef<void(int64_t, absl::Span<const float>)> row);

  runtime::SequencePass& pass_;
  kernels::Tensor logits_;  // f32 [slice, vocab]
};

}  // namespace ridgefill::eval
