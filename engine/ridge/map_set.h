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
  double k_shrinkage = 0, v_shrinkage = 0;             // of a mixture, likewise
  // Weighted held-out squared error of what was chosen, relative to the variance of the targets.
  double k_residual = 0, v_residual = 0;
};

struct MapSetManifest {
  base::ModelIdentity model;
  int layers = 0, hidden = 0, kv_width = 0;
  int split = 0;
  bool folded = true;
  std::string dtype = "bf16";  // "bf16" or "int8"
  // Folded sets only: maps per layer, one for each cluster of rows, whether the row before is an input, and
  // whether inputs are divided by their root mean square first.
  int mixture = 1;
  bool previous_row = false;
  bool normalised = false;
  int tail_default = 512, tail_minimum = 64;
  int min_bulk = 512;
  float outlier_ratio = 3.0f;      // times the calibration median ...
  float outlier_threshold = 0.0f;  // ... which gives this absolute norm of h_S
  int64_t fit_rows = 0;
  std::string fit_corpus;     // provenance, for people
  bool fit_weighted = false;  // rows weighed what later rows attend to them
  std::vector<LayerReport> report;
  std::string digest;  // sha256 of the manifest file: identifies the set on the wire
};

// One late layer's map, widened to f32 on the host. Folded: the maps of a mixture one below the other,
// [mixture
// * 2 * kv_width, inputs], and of the inputs h_S comes first, the row before's h_S second.
struct LayerMap {
  int layer = 0;
  std::vector<float> weight;  // unfolded: [d, d]
  std::vector<float> bias;    // folded: [mixture * 2 * kv_width]; unfolded: [d]
};

// Which map of a mixture a row takes: that with the largest gate . h_S + bias, of equals the first. The same
// as the nearest of `mixture` directions around a mean, by cosine.
struct Gate {
  std::vector<float> weight;  // [mixture, d]
  std::vector<float> bias;    // [mixture]
};

// Within the root of normalised inputs: mean(x^2) + kInputEpsilon.
inline constexpr float kInputEpsilon = 1e-6f;
// Columns of a map.
inline int64_t MapInputs(const MapSetManifest& m) { return int64_t{m.hidden} * (m.previous_row ? 2 : 1); }

class MapSet {
 public:
  static absl::StatusOr<std::unique_ptr<MapSet>> Load(const std::string& folder);
  virtual ~MapSet() = default;
  virtual const MapSetManifest& manifest() const = 0;
  // Layers split+1 .. L-1.
  virtual absl::StatusOr<LayerMap> ReadLayer(int layer) const = 0;
  // Empty unless manifest().mixture > 1.
  virtual absl::StatusOr<Gate> ReadGate() const = 0;
};

// Writes a folded or unfolded set; replaces the folder's files atomically, ridgefill.json last. Fills files'
// sha256 and digest.
absl::Status SaveMapSet(const std::string& folder, const MapSetManifest& manifest,
                        const std::vector<LayerMap>& maps, const Gate& gate = {});

// FAILED_PRECONDITION naming the difference (MAPS_OTHER_ARCH, MAPS_OTHER_DIMENSIONS, MAPS_OTHER_TOKENIZER,
// MAPS_OTHER_SPLIT); OK but `*warning` set when only the weights' encoding differs. `split` < 0: any.
absl::Status CheckCompatible(const MapSetManifest& manifest, const base::ModelIdentity& model, int split,
                             std::string* warning);

}  // namespace ridgefill::ridge
