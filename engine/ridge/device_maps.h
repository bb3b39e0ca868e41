// A map set packed for a backend: turns h_S rows into pre-norm, pre-RoPE K and V of a late layer.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/ridge/map_set.h"
#include "kernels/api/backend.h"

namespace ridgefill::ridge {

// Immutable, thread-safe; must not outlive the backend.
class DeviceMaps {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceMaps>> Load(const MapSet& maps, kernels::Backend& backend);
  virtual ~DeviceMaps() = default;
  virtual const MapSetManifest& manifest() const = 0;
  virtual int64_t bytes() const = 0;
  // Folded: y = kv [rows, 2 * kv_width]; unfolded: y = the layer's post-norm input [rows, d] for
  // Model::ProjectKvNormed. x: h_S in the activation dtype [rows, d].
  virtual absl::Status Apply(kernels::Stream& stream, int layer, const kernels::TensorView& x,
                             const kernels::TensorView& y) const = 0;
};

}  // namespace ridgefill::ridge
