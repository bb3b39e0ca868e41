// Runs the exact model over documents and adds what it sees to sums: block products in f32 on the backend,
// totals in fp64 on the host. Outlier rows are left out.
//
// Not thread-safe. The model must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/fit/sums.h"
#include "engine/model/model.h"
#include "engine/runtime/sequence_pass.h"

namespace ridgefill::fit {

// The rows of one chunk that a fit may see, and what the late layers make of them.
struct ChunkRows {
  int64_t position = 0;        // of the chunk's first row
  std::vector<int32_t> kept;   // rows of the chunk that are no outliers
  kernels::TensorView hidden;  // their h_S, f32 [kept, d]
};

// Walks a document chunk by chunk and shows the rows that are no outliers with their exact K and V. Shared by
// the sums and the held-out report.
class RowWalker {
 public:
  static absl::StatusOr<std::unique_ptr<RowWalker>> Create(const model::Model& model, int split,
                                                           float outlier_threshold, int64_t max_tokens,
                                                           int64_t chunk_rows);

  // `on_chunk` comes before the `on_targets` of its chunk; kv: activation dtype [kept, 2 * kv_width], before
  // K-norm and RoPE, for every layer > split in order.
  using OnChunk = absl::FunctionRef<absl::Status(const ChunkRows& rows)>;
  using OnTargets = absl::FunctionRef<absl::Status(int layer, const kernels::TensorView& kv)>;
  absl::Status Walk(absl::Span<const int32_t> document, OnChunk on_chunk, OnTargets on_targets);

  // ||h_S|| of the document's rows; the lower layers only.
  absl::StatusOr<std::vector<float>> Norms(absl::Span<const int32_t> document);

  runtime::SequencePass& pass() { return *pass_; }

 private:
  RowWalker(int split, float threshold) : split_(split), threshold_(threshold) {}
  absl::Status LowerLayers(absl::Span<const int32_t> ids, absl::Span<const int32_t> positions);
  absl::Status LateLayers(absl::Span<const int32_t> positions, absl::Span<const int32_t> kept,
                          OnTargets on_targets);
  kernels::TensorView Hidden(int64_t rows) const { return hidden_.view().Rows(0, rows); }

  const int split_;
  const float threshold_;
  std::unique_ptr<runtime::SequencePass> pass_;
  kernels::Tensor hidden_;  // f32 [chunk, d]
  kernels::Tensor kept_;    // f32 [chunk, d]
  kernels::Tensor kv_;      // activation dtype [chunk, 2 * kv_width]
  kernels::Tensor last_;    // the same, of the last layer
};

class SumsAccumulator {
 public:
  static absl::StatusOr<std::unique_ptr<SumsAccumulator>> Create(const model::Model& model,
                                                                 const SumsKey& key, int64_t max_tokens,
                                                                 int64_t chunk_rows);
  // Adds the document's rows. After an error `sums` holds a part of them.
  absl::Status Add(absl::Span<const int32_t> document, Sums& sums);

 private:
  explicit SumsAccumulator(const SumsKey& key) : key_(key) {}
  absl::Status AddInputs(const ChunkRows& rows, Sums& sums);
  absl::Status AddTargets(int layer, const kernels::TensorView& kv, Sums& sums);
  absl::Status AddProduct(const kernels::TensorView& x, const kernels::TensorView& y,
                          std::vector<double>& to);

  const SumsKey key_;
  std::unique_ptr<RowWalker> walker_;
  kernels::Tensor rounded_;  // activation dtype [chunk, d]: h_S as the maps will see it
  kernels::Tensor x_;        // f32 [chunk, d]
  kernels::Tensor y_;        // f32 [chunk, 2 * kv_width]
  kernels::Tensor product_;  // f32 [d * max(d, 2 * kv_width)]
  int64_t chunk_kept_ = 0;
};

}  // namespace ridgefill::fit
