// A loaded model: packed weights on one backend, and the passes over batches of rows that the engines are
// made of.
//
// Immutable after Load and thread-safe; each caller brings its own Stream and Workspace. The residual stream
// ("hidden") is f32 [rows, d] everywhere.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/config.h"
#include "engine/model/weight_source.h"
#include "kernels/api/backend.h"

namespace ridgefill::model {

struct LoadOptions {
  // Layers [0, layer_end) are loaded; -1: all of them and the head. A prefill worker may hold the lower
  // layers only.
  int layer_end = -1;
  bool for_prompt = true;  // weight forms to keep (kernels::Phase)
  bool for_decode = true;
  // Called with the share done in [0, 1]; may be empty.
  std::function<void(double)> progress;
};

// Scratch for passes of at most max_rows rows. Not thread-safe.
class Workspace {
 public:
  virtual ~Workspace() = default;
  virtual int64_t max_rows() const = 0;
};

struct ForwardArgs {
  const kernels::Batch* batch = nullptr;
  kernels::KvCache* cache = nullptr;  // holds all layers of the model
  kernels::Phase phase = kernels::Phase::kPrompt;
  kernels::TensorView hidden;  // f32 [rows, d], in: entering layer_begin; out: leaving layer_end - 1
  int layer_begin = 0;
  int layer_end = 0;
  Workspace* workspace = nullptr;
  // Called after a layer's K and V are in the cache and its residual is enqueued; may be empty.
  std::function<absl::Status(int layer)> after_layer;
  // Called with a layer's K and V before K-norm and RoPE: activation dtype [rows, 2 * kv_width]. Fitting
  // reads them.
  std::function<absl::Status(int layer, const kernels::TensorView& kv)> on_kv;
  // Called once a layer's K and V are in the cache, before its attention, with Q turned by RoPE: activation
  // dtype [rows, heads_q * head_dim]. What measures attention (kernels::AttentionMassArgs) reads it.
  std::function<absl::Status(int layer, const kernels::TensorView& q)> on_query;
};

class Model {
 public:
  static absl::StatusOr<std::unique_ptr<Model>> Load(const WeightSource& source, kernels::Backend& backend,
                                                     const LoadOptions& options);
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const kernels::RopeSpec& rope() const = 0;
  virtual kernels::Backend& backend() const = 0;
  virtual int loaded_layers() const = 0;  // layers [0, loaded_layers())
  virtual bool has_head() const = 0;
  virtual int64_t weight_bytes() const = 0;

  virtual absl::StatusOr<std::unique_ptr<Workspace>> NewWorkspace(int64_t max_rows) const = 0;

  // ids: i32 [rows] -> hidden f32 [rows, d].
  virtual absl::Status Embed(kernels::Stream& stream, const kernels::TensorView& ids,
                             const kernels::TensorView& hidden) const = 0;
  virtual absl::Status Forward(kernels::Stream& stream, const ForwardArgs& args) const = 0;
  // Final norm and head: hidden f32 [rows, d] -> logits f32 [rows, vocab].
  virtual absl::Status Logits(kernels::Stream& stream, Workspace& workspace, kernels::Phase phase,
                              const kernels::TensorView& hidden, const kernels::TensorView& logits) const = 0;

  // The three steps a fill is made of (docs/method.md, "The map"). kv: activation dtype [rows, 2 * kv_width].
  // Layer's own input norm, then W_k and W_v: exact for the split layer, the identity fill for later ones.
  virtual absl::Status ProjectKv(kernels::Stream& stream, Workspace& workspace, int layer,
                                 const kernels::TensorView& hidden, const kernels::TensorView& kv) const = 0;
  // W_k and W_v on an input that is normed already (unfolded maps): x activation dtype [rows, d].
  virtual absl::Status ProjectKvNormed(kernels::Stream& stream, int layer, const kernels::TensorView& x,
                                       const kernels::TensorView& kv) const = 0;
  // K-norm where the architecture has one, RoPE at each row's position, write into the cache.
  virtual absl::Status WriteKv(kernels::Stream& stream, int layer, const kernels::TensorView& kv,
                               const kernels::Batch& batch, kernels::KvCache& cache) const = 0;
};

}  // namespace ridgefill::model
