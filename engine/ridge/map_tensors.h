// How one layer's map lies in safetensors files: names, shapes, decoding. Shared by the reader and the writer
// of map sets.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/formats/safetensors.h"
#include "engine/ridge/map_set.h"

namespace ridgefill::ridge {

// "kv.<layer>" for folded maps, "proj.<layer>" for unfolded ones; ".weight" (bf16) or ".codes" and ".scale"
// (int8), and ".bias" follow.
std::string TensorPrefix(bool folded, int layer);

// Rows of one map: 2 * kv_width when folded, else the model width.
int64_t MapRows(const MapSetManifest& manifest);

// The tensors of all files of a set, by name.
using TensorMap = absl::flat_hash_map<std::string, formats::TensorBytes>;

// The tensors of one layer, present, of the right encoding and shape. Borrowed.
struct MapTensors {
  // rows: those of all maps of the mixture; inputs: MapInputs.
  const formats::TensorBytes* weight =
      nullptr;                                  // [rows, inputs] float; "layer.<l>": [rows, d + 1], bias last
  const formats::TensorBytes* codes = nullptr;  // [rows, inputs] I8, instead of weight
  const formats::TensorBytes* scale = nullptr;  // [rows, ceil(inputs / 128)] BF16, with codes
  const formats::TensorBytes* bias = nullptr;   // [rows] float; null: in weight's last column
};

// NOT_FOUND (MAPS_LAYER_MISSING) or INVALID_ARGUMENT (MAPS_SHAPE) naming layer and tensor.
absl::StatusOr<MapTensors> FindMapTensors(const MapSetManifest& manifest, int layer, const TensorMap& all);

absl::StatusOr<LayerMap> DecodeMap(const MapSetManifest& manifest, int layer, const MapTensors& tensors);

// "gate.weight" and "gate.bias" of a mixture; MAPS_GATE_MISSING, MAPS_SHAPE.
absl::StatusOr<Gate> DecodeGate(const MapSetManifest& manifest, const TensorMap& all);

}  // namespace ridgefill::ridge
