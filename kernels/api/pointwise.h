// Ops that treat every row alone: embedding, RMSNorm, SwiGLU.
#pragma once

#include "absl/status/status.h"
#include "kernels/api/tensor.h"

namespace ridgefill::kernels {

// out[r] = table[ids[r]]. Ids were validated by the caller.
struct EmbeddingArgs {
  TensorView table;  // bf16 or f32 [vocab, d]
  TensorView ids;    // i32 [rows]
  TensorView out;    // residual dtype (f32) [rows, d]
};
absl::Status Check(const EmbeddingArgs& args);

// out = x / sqrt(mean(x^2) + eps) * weight. Zhang and Sennrich 2019.
struct RmsNormArgs {
  TensorView x;       // residual dtype (f32) [rows, d]
  TensorView weight;  // f32 [d]
  float eps = 1e-5f;
  TensorView out;  // activation dtype or f32 [rows, d]
};
absl::Status Check(const RmsNormArgs& args);

// out = silu(gate) * up. Shazeer 2020.
struct SwiGluArgs {
  TensorView gate_up;  // activation dtype [rows, 2 * ffn]: gate, then up
  TensorView out;      // activation dtype [rows, ffn]
};
absl::Status Check(const SwiGluArgs& args);

// out = x in another dtype (f32 <-> bf16, round to nearest even). The fill feeds h_S to its maps with it.
struct CastArgs {
  TensorView x;    // [rows, d]
  TensorView out;  // [rows, d]
};
absl::Status Check(const CastArgs& args);

}  // namespace ridgefill::kernels
