// The exact model over calibration text, and what a fit wants to know of it.
//
// Not thread-safe. The model must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/fit/row_file.h"
#include "engine/model/model.h"
#include "engine/runtime/sequence_pass.h"

namespace ridgefill::fit {

class Collector {
 public:
  // Documents of up to max_tokens, in passes of up to chunk_rows rows.
  static absl::StatusOr<std::unique_ptr<Collector>> Create(const model::Model& model, const RowsKey& key,
                                                           int64_t max_tokens, int64_t chunk_rows);
  // Fills tokens, hidden, kv and mass.
  absl::StatusOr<DocumentRows> Collect(absl::Span<const int32_t> ids);

 private:
  explicit Collector(const RowsKey& key) : key_(key) {}
  absl::Status Chunk(absl::Span<const int32_t> ids, int64_t begin, DocumentRows& out);
  absl::Status LateLayers(const std::vector<int32_t>& positions, const kernels::TensorView& hidden, int begin,
                          int end, DocumentRows& out);
  absl::Status AddMass(int layer, const std::vector<int32_t>& positions, const kernels::TensorView& q);
  absl::Status ReadMass(DocumentRows& out);

  const RowsKey key_;
  std::unique_ptr<runtime::SequencePass> pass_;
  kernels::Tensor hidden_;             // f32 [chunk, d]
  kernels::Tensor queries_;            // activation dtype [chunk, q_heads * head_dim]
  std::vector<kernels::Tensor> mass_;  // by layer above the lowest split, f32 [heads_kv, max_tokens]
};

}  // namespace ridgefill::fit
