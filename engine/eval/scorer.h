// From rows that left the last layer to figures: the loss of the token that came, and how far one run's
// distribution is from another's. Logits are computed slice by slice, never held for a whole document.
//
// Not thread-safe; the pass must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
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

class Scorer {
 public:
  static absl::StatusOr<std::unique_ptr<Scorer>> Create(runtime::SequencePass& pass);

  // hidden f32 [1, d] -> [vocab].
  absl::StatusOr<std::vector<float>> Logits(const kernels::TensorView& hidden);
  // hidden f32 [rows, d], tokens [rows]: what followed each row.
  absl::StatusOr<std::vector<TokenScore>> Score(const kernels::TensorView& hidden,
                                                absl::Span<const int32_t> tokens);
  // The same rows of two runs.
  absl::StatusOr<std::vector<PairScore>> Compare(const kernels::TensorView& exact,
                                                 const kernels::TensorView& filled,
                                                 absl::Span<const int32_t> tokens);

 private:
  explicit Scorer(runtime::SequencePass& pass) : pass_(pass) {}

  runtime::SequencePass& pass_;
  kernels::Tensor logits_;  // f32 [slice, vocab]
};

}  // namespace ridgefill::eval
