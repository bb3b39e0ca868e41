// One sequence alone in a cache of its own, outside any engine: what fitting and evaluation run the model
// through. Every call waits for its result.
//
// Not thread-safe. The model must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/model.h"

namespace ridgefill::runtime {

class SequencePass {
 public:
  // Sequences of up to max_tokens, in calls of up to max_rows rows.
  static absl::StatusOr<std::unique_ptr<SequencePass>> Create(const model::Model& model, int64_t max_tokens,
                                                              int64_t max_rows);

  // ids [rows], inside the vocabulary -> hidden f32 [rows, d].
  absl::Status Embed(absl::Span<const int32_t> ids, const kernels::TensorView& hidden);

  struct Layers {
    absl::Span<const int32_t> positions;  // [rows], ascending
    kernels::TensorView hidden;           // f32 [rows, d], in place
    int begin = 0, end = 0;
    std::function<absl::Status(int layer, const kernels::TensorView& kv)> on_kv;  // as in model::ForwardArgs
    std::function<absl::Status(int layer, const kernels::TensorView& q)> on_query;  // likewise
  };
  absl::Status Forward(const Layers& layers);

  // Runs `work` with a batch of these rows, and waits for the stream.
  using BatchWork = absl::FunctionRef<absl::Status(const kernels::Batch& batch)>;
  absl::Status WithBatch(absl::Span<const int32_t> positions, BatchWork work);

  // ||hidden[r]||.
  absl::StatusOr<std::vector<float>> RowNorms(const kernels::TensorView& hidden);
  // out[i] = x[index[i]].
  absl::Status Gather(const kernels::TensorView& x, absl::Span<const int32_t> index,
                      const kernels::TensorView& out);
  // Any float tensor as f32 on the host.
  absl::StatusOr<std::vector<float>> Floats(const kernels::TensorView& x);

  const model::Model& model() const { return model_; }
  kernels::Backend& backend() const { return model_.backend(); }
  kernels::Stream& stream() { return *stream_; }
  kernels::KvCache& cache() { return *cache_; }
  absl::Span<const int32_t> block_table() const { return blocks_; }
  model::Workspace& workspace() { return *workspace_; }
  int64_t max_tokens() const { return max_tokens_; }
  int64_t max_rows() const { return workspace_->max_rows(); }

 private:
  SequencePass(const model::Model& model, int64_t max_tokens);

  const model::Model& model_;
  const int64_t max_tokens_;
  std::vector<int32_t> blocks_;  // 0, 1, 2, ...: the sequence owns the whole cache
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<kernels::KvCache> cache_;
  std::unique_ptr<model::Workspace> workspace_;
  kernels::Tensor ids_;    // i32 [max_rows]: token ids, or indices of rows
  kernels::Tensor norms_;  // f32 [max_rows]
};

// begin, begin + 1, ..., end - 1.
std::vector<int32_t> Positions(int64_t begin, int64_t end);

}  // namespace ridgefill::runtime
