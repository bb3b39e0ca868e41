// The fill: late K and V of bulk rows from their h_S alone (docs/method.md, "What happens to a prompt", step
// 3). Both engines and the evaluation run this very code.
//
// Rows that take the same map of a mixture are brought side by side, so that each map is one product; a row's
// values do not depend on its neighbours.
//
// Owns the buffers of one fill in flight. Not thread-safe; model and maps must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/model.h"
#include "engine/ridge/device_maps.h"

namespace ridgefill::runtime {

class FillPass {
 public:
  // For calls of at most max_rows rows. The maps were checked against the model (ridge::CheckCompatible).
  static absl::StatusOr<std::unique_ptr<FillPass>> Create(const model::Model& model,
                                                          const ridge::DeviceMaps& maps, int64_t max_rows);
  // The identity fill, the baseline of every report: each late layer's own norm and projections on h_S.
  static absl::StatusOr<std::unique_ptr<FillPass>> CreateIdentity(const model::Model& model, int split,
                                                                  int64_t max_rows);

  // What the maps take of some rows.
  struct Rows {
    kernels::TensorView hidden;  // h_S, f32 [rows, d]
    // h_S of ridge::PreviousRow of each, f32 [rows, d]; not read unless needs_previous().
    kernels::TensorView previous;
  };
  bool needs_previous() const { return maps_ != nullptr && maps_->manifest().previous_row; }
  int split() const { return split_; }
  // Of a fill from maps.
  const ridge::MapSetManifest& manifest() const { return maps_->manifest(); }

  struct Args {
    Rows rows;
    absl::Span<const int32_t> positions;    // [rows], ascending
    absl::Span<const int32_t> block_table;  // of their sequence; borrowed until the stream was waited for
    kernels::KvCache* cache = nullptr;      // holds all layers of the model
    model::Workspace* workspace = nullptr;  // for at least `rows` rows
    // Called after a layer's K and V are enqueued; may be empty. An error ends the fill.
    std::function<absl::Status(int layer)> after_layer;
  };
  // Writes K and V of the rows for layers split .. L-1 in order; the split layer's are exact. The caller
  // waits for the stream before the next call.
  absl::Status Run(kernels::Stream& stream, const Args& args);

  // K and V of one layer > split before K-norm and RoPE: kv f32 [rows, 2 * kv_width].
  absl::Status Predict(kernels::Stream& stream, model::Workspace& workspace, int layer, const Rows& rows,
                       const kernels::TensorView& kv);

 private:
  FillPass(const model::Model& model, const ridge::DeviceMaps* maps, int split)
      : model_(model), maps_(maps), split_(split) {}
  static absl::StatusOr<std::unique_ptr<FillPass>> Make(const model::Model& model,
                                                        const ridge::DeviceMaps* maps, int split,
                                                        int64_t max_rows);
  absl::Status AllocateInputs(int64_t max_rows);
  // A map's input of h_S, in the activation dtype.
  absl::Status Input(kernels::Stream& stream, const kernels::TensorView& x, const kernels::TensorView& input);
  absl::Status MakeOnes(int64_t count);
  absl::Status Prepare(kernels::Stream& stream, const Rows& rows);
  absl::Status Group(kernels::Stream& stream, const kernels::TensorView& hidden);
  absl::StatusOr<kernels::TensorView> Ordered(kernels::Stream& stream, const kernels::TensorView& x,
                                              const kernels::Tensor& buffer);
  absl::Status MakeBatch(const Args& args);
  absl::StatusOr<kernels::TensorView> LayerKv(kernels::Stream& stream, model::Workspace& workspace,
                                              int layer);
  absl::Status ApplyMaps(kernels::Stream& stream, int layer, const kernels::TensorView& y);

  const model::Model& model_;
  const ridge::DeviceMaps* const maps_;  // null: identity
  const int split_;

  // Of the call in flight. Rows lie in the order of their maps: group g of map g is [ends[g - 1], ends[g]).
  std::vector<int32_t> order_;  // row of the caller by place; empty: as they came
  std::vector<int64_t> group_ends_;
  std::vector<int32_t> positions_;  // by place
  std::unique_ptr<kernels::Batch> batch_;
  kernels::TensorView hidden_;  // f32 [rows, d], by place
  ridge::DeviceMaps::Inputs inputs_;

  kernels::Tensor index_;                              // i32 [max_rows]
  kernels::Tensor scores_;                             // f32 [max_rows, mixture]
  kernels::Tensor ordered_hidden_, ordered_previous_;  // f32 [max_rows, d]
  kernels::Tensor ones_;                               // f32 [d], of normalised inputs
  kernels::Tensor input_, previous_;                   // activation dtype [max_rows, d]: what the maps take
  kernels::Tensor mapped_;  // [max_rows, d]: a late layer's normed input, unfolded maps only
  kernels::Tensor kv_;      // activation dtype [max_rows, 2 * kv_width]
  kernels::Tensor sum_;     // f32 [max_rows, 2 * kv_width]: of maps with two inputs
};

// Fills from several map sets, one at a time.
using FillPasses = std::vector<std::unique_ptr<FillPass>>;
absl::StatusOr<FillPasses> CreateFillPasses(const model::Model& model, ridge::MapSets maps, int64_t max_rows);
// The one of a split that is among them.
FillPass& OfSplit(const FillPasses& passes, int split);
bool AnyNeedsPrevious(const FillPasses& passes);

// ||hidden[r]||, which says what is an outlier. Waits for the stream; `buffer` f32 [>= rows].
absl::StatusOr<std::vector<float>> RowNorms(kernels::Backend& backend, kernels::Stream& stream,
                                            const kernels::TensorView& hidden, const kernels::Tensor& buffer);

}  // namespace ridgefill::runtime
