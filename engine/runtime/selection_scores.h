// The scores that QUALITY selects by: the attention that the last rows of a prompt pay to each of its
// positions. Either in the layers just below the split, as the mean over rows and the heads of a group, of
// the layer and group where it is highest; or in the late layers over the filled cache (a probe), as the
// maximum.
//
// Gathered chunk by chunk from model::ForwardArgs::on_query; the values do not depend on how the prompt is
// cut.
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
  // For a prompt of `tokens` rows, in the lower layers.
  static absl::StatusOr<std::unique_ptr<SelectionScores>> Create(const model::Model& model, int split,
                                                                 int64_t tokens, kernels::Stream& stream);
  // In the late layers, of rows [probe_begin, tokens).
  static absl::StatusOr<std::unique_ptr<SelectionScores>> CreateProbe(const model::Model& model, int split,
                                                                      int64_t probe_begin, int64_t tokens,
                                                                      kernels::Stream& stream);

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
  absl::StatusOr<std::vector<float>> Read(kernels::Stream& stream) const;

 private:
  struct Scope {
    int layer_begin = 0, layer_end = 0;
    int64_t row_begin = 0, tokens = 0;
    kernels::MassReduction reduction = kernels::MassReduction::kSum;
    bool sums() const { return reduction == kernels::MassReduction::kSum; }
  };
  SelectionScores(const model::Model& model, const Scope& scope) : model_(model), scope_(scope) {}
  static absl::StatusOr<std::unique_ptr<SelectionScores>> Make(const model::Model& model, const Scope& scope,
                                                               kernels::Stream& stream);

  const model::Model& model_;
  const Scope scope_;
  // f32 [heads_kv, tokens] for each layer apart, so that chunks add in one order; one for all where the order
  // of maxima is no matter.
  kernels::Tensor mass_;
  std::vector<std::unique_ptr<kernels::Batch>> batches_;  // the device may still read them
  int64_t batch_begin_ = -1;                              // first row of the last of them
};

}  // namespace ridgefill::runtime
