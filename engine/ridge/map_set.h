// A map set on disk: a folder with ridgefill.json and safetensors files (docs/formats.md).
//
// Immutable after Load, thread-safe. Load verifies the sha256 of every listed file and all shapes; errors
// name file, layer and tensor. Also reads published RidgeFill projector folders as unfolded sets.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/model_identity.h"
#include "kernels/api/backend.h"

namespace ridgefill::ridge {

// Held-out quality of one layer's map, with the identity fill beside it.
struct LayerReport {
  int layer = 0;
  double k_cosine = 0, v_error = 0;                    // mean per-head cosine of K; ||V' - V|| / ||V||
  double identity_k_cosine = 0, identity_v_error = 0;  // the same of the identity fill
  double k_penalty = 0, v_penalty = 0;                 // lambda chosen on held-out rows
};

struct MapSetManifest {
  int format_version = 1;
  base::ModelIdentity model;
  int layers = 0, hidden = 0, kv_width = 0;
  int split = 0;
  bool folded = true;
  std::string dtype = "bf16";  // "bf16" or "int8"
  int tail_default = 512, tail_minimum = 64;
  int min_bulk = 512;
  float outlier_ratio = 3.0f;      // times the calibration median ...
  float outlier_threshold = 0.0f;  // ... which gives this absolute norm of h_S
  int64_t fit_rows = 0;
  std::string fit_corpus;  // provenance, for people
  std::vector<LayerReport> report;
  std::string digest;  // sha256 of the manifest file: identifies the set on the wire
};

// One late layer's map, widened to f32 on the host.
struct LayerMap {
  int layer = 0;
  std::vector<float> weight;  // folded: [2 * kv_width, d]; unfolded: [d, d]
  std::vector<float> bias;    // folded: [2 * kv_width]; unfolded: [d]
};

class MapSet {
 public:
  static absl::StatusOr<std::unique_ptr<MapSet>> Load(const std::string& folder);
  virtual ~MapSet() = default;
  virtual const MapSetManifest& manifest() const = 0;
  // Layers split+1 .. L-1.
  virtual absl::StatusOr<LayerMap> ReadLayer(int layer) const = 0;
};

// Writes a folded or unfolded set; replaces the folder's files atomically, ridgefill.json last. Fills files'
// sha256 and digest.
absl::Status SaveMapSet(const std::string& folder, const MapSetManifest& manifest,
                        const std::vector<LayerMap>& maps);

// FAILED_PRECONDITION naming the difference (MAPS_OTHER_ARCH, MAPS_OTHER_DIMENSIONS, MAPS_OTHER_TOKENIZER,
// MAPS_OTHER_SPLIT); OK but `*warning` set when only the weights' encoding differs. `split` < 0: any.
absl::Status CheckCompatible(const MapSetManifest& manifest, const base::ModelIdentity& model, int split,
                             std::string* warning);

}  // namespace ridgefill::ridge
