// The scores that QUALITY selects by: the attention that the last rows of a prompt pay to each of its
// positions in the layers just below the split, as the mean over rows, heads and layers.
//
// Gathered chunk by chunk from model::ForwardArgs::on_query; the sums do not depend on how the prompt is cut.
// Not thread-safe: one prompt's own. Model and cache must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/model.h"

namespace ridgefill::runtime {

class SelectionScores {
 public:
  // For a prompt of `tokens` rows.
  static absl::StatusOr<std::unique_ptr<SelectionScores>> Create(const model::Model& model, int split,
                                                                 int64_t tokens, kernels::Stream& stream);

  // The rows that `q` [rows, heads_q * head_dim] is of, consecutive ones from row_begin on. They may reach
  // past the prompt.
  struct Chunk {
    const kernels::KvCache* cache = nullptr;
    absl::Span<const int32_t> block_table;
    int64_t row_begin = 0;
  };
  // As model::ForwardArgs::on_query. Enqueued: the stream must be synchronised before this object goes.
  absl::Status Add(kernels::Stream& stream, int layer, const kernels::TensorView& q, const Chunk& chunk);
  // [tokens], once the prompt's last chunk was added. Synchronises the stream.
  absl::StatusOr<std::vector<float>> Mean(kernels::Stream& stream) const;

 private:
  SelectionScores(const model::Model& model, int split, int64_t tokens);

  const model::Model& model_;
  const int layer_begin_, layer_end_;
  const int64_t tokens_, scoring_begin_;
  kernels::Tensor mass_;  // f32 [layers * heads_kv, tokens]: apart, so that chunks add in one order
  std::vector<std::unique_ptr<kernels::Batch>> batches_;  // the device may still read them
  int64_t batch_begin_ = -1;                              // first row of the last of them
};

}  // namespace ridgefill::runtime
