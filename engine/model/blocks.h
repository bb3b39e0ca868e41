// The blocks that architectures are put together from. An ArchSpec::forward_layer is a straight line of calls
// to them; what differs between architectures is read from ModelConfig and LayerWeights.
//
// Every block enqueues on run.stream and allocates nothing. Shapes: rows = batch->rows(), d = hidden,
// q = heads_q * head_dim, kv = kv_width().
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "engine/model/config.h"
#include "engine/model/model.h"
#include "kernels/api/backend.h"

namespace ridgefill::model {

// Packed weights of one layer. W_q and W_k, W_v are packed apart, so that a fill, which needs no queries,
// computes K and V with the very linear that a forward uses. Per-head norms of Q and K, where an architecture
// has them, belong here (q_norm, k_norm f32 [head_dim]) and are applied in AttentionBlock and RopeKv before
// RoPE.
struct LayerWeights {
  kernels::Tensor input_norm;                       // f32 [d]
  std::unique_ptr<kernels::PackedLinear> q;         // [q, d]
  std::unique_ptr<kernels::PackedLinear> kv;        // [2 * kv, d]: W_k, then W_v
  std::unique_ptr<kernels::PackedLinear> attn_out;  // [d, q]
  kernels::Tensor ffn_norm;                         // f32 [d]
  std::unique_ptr<kernels::PackedLinear> gate_up;   // [2 * ffn, d]: W_gate, then W_up
  std::unique_ptr<kernels::PackedLinear> ffn_out;   // [d, ffn]
};

// The buffers behind Workspace, in the activation dtype; blocks use their first `rows` rows.
struct Scratch final : Workspace {
  static absl::StatusOr<std::unique_ptr<Scratch>> New(kernels::Backend& backend, const ModelConfig& config,
                                                      int64_t max_rows);
  int64_t max_rows() const override { return rows; }

  int64_t rows = 0;
  kernels::Tensor normed;    // [rows, d]
  kernels::Tensor q;         // [rows, q]
  kernels::Tensor kv;        // [rows, 2 * kv]
  kernels::Tensor attended;  // [rows, q]
  kernels::Tensor gate_up;   // [rows, 2 * ffn]
  kernels::Tensor ffn;       // [rows, ffn]
};

// One layer over one batch.
struct LayerRun {
  kernels::Backend& backend;
  kernels::Stream& stream;
  const ModelConfig& config;
  const kernels::RopeSpec& rope;
  const LayerWeights& weights;
  const ForwardArgs& args;  // hidden f32 [rows, d]: the residual, in place
  Scratch& scratch;
  int layer = 0;
};

// hidden += W_o attention(norm(hidden)); K and V of the rows enter the cache.
absl::Status AttentionBlock(LayerRun& run);
// hidden += W_down (silu(W_gate x) * W_up x), x = norm(hidden).
absl::Status SwiGluBlock(LayerRun& run);

// The steps of AttentionBlock that a fill takes alone.
struct KvStep {
  kernels::Backend& backend;
  kernels::Stream& stream;
  const ModelConfig& config;
  const LayerWeights& weights;
};
// normed activation dtype [rows, d] = RMSNorm(hidden f32 [rows, d]).
absl::Status InputNorm(const KvStep& step, const kernels::TensorView& hidden,
                       const kernels::TensorView& normed);
// kv activation dtype [rows, 2 * kv] = W_k, W_v on normed [rows, d].
absl::Status ProjectKv(const KvStep& step, kernels::Phase phase, const kernels::TensorView& normed,
                       const kernels::TensorView& kv);

}  // namespace ridgefill::model
