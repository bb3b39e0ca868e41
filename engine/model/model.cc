#include "engine/model/model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/model/arch_spec.h"
#include "engine/model/blocks.h"
#include "engine/model/loader.h"
#include "kernels/api/check_args.h"

namespace ridgefill::model {
namespace {

using kernels::BadArgs;
using kernels::DType;
using kernels::TensorView;

class LoadedModel final : public Model {
 public:
  LoadedModel(const ModelConfig& config, const ArchSpec& arch, kernels::Backend& backend,
              ModelWeights weights)
      : config_(config),
        rope_(MakeRopeSpec(config)),
        arch_(arch),
        backend_(backend),
        weights_(std::move(weights)) {}

  const ModelConfig& config() const override { return config_; }
  const kernels::RopeSpec& rope() const override { return rope_; }
  kernels::Backend& backend() const override { return backend_; }
  int loaded_layers() const override { return static_cast<int>(weights_.layers.size()); }
  bool has_head() const override { return weights_.head != nullptr; }
  int64_t weight_bytes() const override { return weights_.bytes; }

  absl::StatusOr<std::unique_ptr<Workspace>> NewWorkspace(int64_t max_rows) const override;
  absl::Status Embed(kernels::Stream& stream, const TensorView& ids, const TensorView& hidden) const override;
  absl::Status Forward(kernels::Stream& stream, const ForwardArgs& args) const override;
  absl::Status Logits(kernels::Stream& stream, Workspace& workspace, kernels::Phase phase,
                      const TensorView& hidden, const TensorView& logits) const override;
  absl::Status ProjectKv(kernels::Stream& stream, Workspace& workspace, int layer, const TensorView& hidden,
                         const TensorView& kv) const override;
  absl::Status ProjectKvNormed(kernels::Stream& stream, int layer, const TensorView& x,
                               const TensorView& kv) const override;
  absl::Status WriteKv(kernels::Stream& stream, int layer, const TensorView& kv, const kernels::Batch& batch,
                       kernels::KvCache& cache) const override;

 private:
  absl::Status CheckLayer(int layer) const;
  absl::Status CheckForward(const ForwardArgs& args) const;
  KvStep Step(kernels::Stream& stream, int layer) const {
    return {backend_, stream, config_, weights_.layers[layer]};
  }

  ModelConfig config_;
  kernels::RopeSpec rope_;
  const ArchSpec& arch_;
  kernels::Backend& backend_;
  ModelWeights weights_;
};

// The first rows of the workspace's normed activations, [rows, d].
absl::StatusOr<TensorView> NormedRows(Workspace& workspace, int64_t rows) {
  if (rows <= workspace.max_rows()) return static_cast<Scratch&>(workspace).normed.view().Rows(0, rows);
  return BadArgs(absl::StrCat("model: ", rows, " rows in a workspace of ", workspace.max_rows()));
}

absl::Status LoadedModel::CheckLayer(int layer) const {
  if (layer >= 0 && layer < loaded_layers()) return absl::OkStatus();
  return BadArgs(absl::StrCat("model: layer ", layer, " of ", loaded_layers(), " loaded ones"));
}

absl::Status LoadedModel::CheckForward(const ForwardArgs& args) const {
  if (args.batch == nullptr || args.cache == nullptr || args.workspace == nullptr) {
    return BadArgs("forward: no batch, cache or workspace");
  }
  if (args.layer_begin < 0 || args.layer_begin > args.layer_end || args.layer_end > loaded_layers()) {
    return BadArgs(absl::StrCat("forward: layers [", args.layer_begin, ", ", args.layer_end, ") of ",
                                loaded_layers(), " loaded ones"));
  }
  const int64_t rows = args.batch->rows();
  if (rows > args.workspace->max_rows()) {
    return BadArgs(absl::StrCat("forward: ", rows, " rows in a workspace of ", args.workspace->max_rows()));
  }
  return kernels::CheckTensor("forward", "hidden", args.hidden, DType::kF32, {rows, config_.hidden});
}

absl::StatusOr<std::unique_ptr<Workspace>> LoadedModel::NewWorkspace(int64_t max_rows) const {
  return Scratch::New(backend_, config_, max_rows);
}

absl::Status LoadedModel::Embed(kernels::Stream& stream, const TensorView& ids,
                                const TensorView& hidden) const {
  return backend_.Embedding(stream, {weights_.embedding.view(), ids, hidden});
}

absl::Status LoadedModel::Forward(kernels::Stream& stream, const ForwardArgs& args) const {
  RF_RETURN_IF_ERROR(CheckForward(args));
  auto& scratch = static_cast<Scratch&>(*args.workspace);
  for (int layer = args.layer_begin; layer < args.layer_end; ++layer) {
    LayerRun run{backend_, stream, config_, rope_, weights_.layers[layer], args, scratch, layer};
    RF_RETURN_IF_ERROR(arch_.forward_layer(run));
    if (args.after_layer) RF_RETURN_IF_ERROR(args.after_layer(layer));
  }
  return absl::OkStatus();
}

absl::Status LoadedModel::Logits(kernels::Stream& stream, Workspace& workspace, kernels::Phase phase,
                                 const TensorView& hidden, const TensorView& logits) const {
  if (!has_head()) return BadArgs("logits: the head was not loaded");
  RF_ASSIGN_OR_RETURN(const TensorView normed, NormedRows(workspace, hidden.dim(0)));
  RF_RETURN_IF_ERROR(backend_.RmsNorm(stream, {hidden, weights_.final_norm.view(), config_.rms_eps, normed}));
  return backend_.Linear(stream, {.x = normed, .weight = weights_.head.get(), .y = logits, .phase = phase});
}

absl::Status LoadedModel::ProjectKv(kernels::Stream& stream, Workspace& workspace, int layer,
                                    const TensorView& hidden, const TensorView& kv) const {
  RF_RETURN_IF_ERROR(CheckLayer(layer));
  RF_ASSIGN_OR_RETURN(const TensorView normed, NormedRows(workspace, hidden.dim(0)));
  RF_RETURN_IF_ERROR(InputNorm(Step(stream, layer), hidden, normed));
  return ProjectKvNormed(stream, layer, normed, kv);
}

absl::Status LoadedModel::ProjectKvNormed(kernels::Stream& stream, int layer, const TensorView& x,
                                          const TensorView& kv) const {
  RF_RETURN_IF_ERROR(CheckLayer(layer));
  return model::ProjectKv(Step(stream, layer), kernels::Phase::kPrompt, x, kv);
}

absl::Status LoadedModel::WriteKv(kernels::Stream& stream, int layer, const TensorView& kv,
                                  const kernels::Batch& batch, kernels::KvCache& cache) const {
  // Any layer of the cache: a worker that holds only the lower layers fills the late ones.
  return backend_.RopeWrite(
      stream, {.batch = &batch, .rope = &rope_, .q = {}, .kv = kv, .cache = &cache, .layer = layer});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const WeightSource& source, kernels::Backend& backend,
                                                   const LoadOptions& options) {
  const ModelConfig& config = source.config();
  if (options.layer_end > config.layers) {
    return BadArgs(absl::StrCat("model: ", options.layer_end, " layers to load of ", config.layers));
  }
  RF_ASSIGN_OR_RETURN(const ArchSpec* arch, FindArch(config.arch));
  RF_ASSIGN_OR_RETURN(ModelWeights weights, LoadWeights(source, backend, options));
  return std::make_unique<LoadedModel>(config, *arch, backend, std::move(weights));
}

}  // namespace ridgefill::model
