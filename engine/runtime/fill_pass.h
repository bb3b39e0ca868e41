// The fill: late K and V of bulk rows from their h_S alone (docs/method.md, "What happens to a prompt", step
// 3). Both engines and the evaluation run this very code.
//
// Owns the buffers of one fill in flight. Not thread-safe; model and maps must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/ridge/device_maps.h"

namespace ridgefill::runtime {

class FillPass {
 public:
  // For batches of at most max_rows rows. The maps were checked against the model (ridge::CheckCompatible).
  static absl::StatusOr<std::unique_ptr<FillPass>> Create(const model::Model& model,
                                                          const ridge::DeviceMaps& maps, int64_t max_rows);
  // The identity fill, the baseline of every report: each late layer's own norm and projections on h_S.
  static absl::StatusOr<std::unique_ptr<FillPass>> CreateIdentity(const model::Model& model, int split,
                                                                  int64_t max_rows);

  struct Args {
    kernels::TensorView hidden;             // h_S, f32 [rows, d]
    const kernels::Batch* batch = nullptr;  // the same rows
    kernels::KvCache* cache = nullptr;      // holds all layers of the model
    model::Workspace* workspace = nullptr;  // for at least `rows` rows
    // Called after a layer's K and V are enqueued; may be empty. An error ends the fill.
    std::function<absl::Status(int layer)> after_layer;
  };
  // Writes K and V of the batch's rows for layers split .. L-1 in order; the split layer's are exact.
  absl::Status Run(kernels::Stream& stream, const Args& args);

  // K and V of one layer > split before K-norm and RoPE: kv activation dtype [rows, 2 * kv_width].
  absl::Status Predict(kernels::Stream& stream, model::Workspace& workspace, int layer,
                       const kernels::TensorView& hidden, const kernels::TensorView& kv);

 private:
  FillPass(const model::Model& model, const ridge::DeviceMaps* maps, int split)
      : model_(model), maps_(maps), split_(split) {}
  static absl::StatusOr<std::unique_ptr<FillPass>> Make(const model::Model& model,
                                                        const ridge::DeviceMaps* maps, int split,
                                                        int64_t max_rows);
  absl::Status ApplyMap(kernels::Stream& stream, int layer, const kernels::TensorView& input,
                        const kernels::TensorView& kv);

  const model::Model& model_;
  const ridge::DeviceMaps* const maps_;  // null: identity
  const int split_;
  // In the activation dtype:
  kernels::Tensor input_;   // [max_rows, d]: h_S as the maps take it
  kernels::Tensor mapped_;  // [max_rows, d]: a late layer's normed input, unfolded maps only
  kernels::Tensor kv_;      // [max_rows, 2 * kv_width]
};

}  // namespace ridgefill::runtime
