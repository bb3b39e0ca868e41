// A map set packed for a backend: turns h_S rows into pre-norm, pre-RoPE K and V of a late layer
// (docs/method.md, "The map").
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
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

  // The inputs of some rows, in the activation dtype [rows, d].
  struct Inputs {
    kernels::TensorView hidden;
    kernels::TensorView previous;  // the row before's; rank 0 unless manifest().previous_row
  };
  // One map of a mixture (0 where there is only one). Folded: y = kv [rows, 2 * kv_width], f32 when the
  // previous row is an input; unfolded: y = the layer's post-norm input [rows, d] for Model::ProjectKvNormed.
  virtual absl::Status Apply(kernels::Stream& stream, int layer, int component, const Inputs& inputs,
                             const kernels::TensorView& y) const = 0;
  // What the rows' maps are chosen by (Gate): hidden as above, scores f32 [rows, mixture]. Mixtures only.
  virtual absl::Status Score(kernels::Stream& stream, const kernels::TensorView& hidden,
                             const kernels::TensorView& scores) const = 0;
};

// What a worker fills with: map sets of different splits, the default one first. Empty: it fills nothing.
using MapSets = absl::Span<const DeviceMaps* const>;
// Null: there is none of this split.
const DeviceMaps* FindSplit(MapSets sets, int split);
// "18, 16", as errors name them.
std::string SplitNames(MapSets sets);

}  // namespace ridgefill::ridge
