#include "engine/runtime/fill_pass.h"

#include "engine/base/check.h"
#include "engine/base/status.h"

namespace ridgefill::runtime {

using kernels::TensorView;

absl::StatusOr<std::unique_ptr<FillPass>> FillPass::Create(const model::Model& model,
                                                           const ridge::DeviceMaps& maps, int64_t max_rows) {
  const ridge::MapSetManifest& m = maps.manifest();
  RF_CHECK(m.hidden == model.config().hidden && m.layers == model.config().layers);
  RF_CHECK(!m.folded || m.kv_width == model.config().kv_width());
  return Make(model, &maps, m.split, max_rows);
}

absl::StatusOr<std::unique_ptr<FillPass>> FillPass::CreateIdentity(const model::Model& model, int split,
                                                                   int64_t max_rows) {
  return Make(model, nullptr, split, max_rows);
}

absl::StatusOr<std::unique_ptr<FillPass>> FillPass::Make(const model::Model& model,
                                                         const ridge::DeviceMaps* maps, int split,
                                                         int64_t max_rows) {
  const model::ModelConfig& config = model.config();
  kernels::Backend& backend = model.backend();
  const kernels::DType dtype = backend.capabilities().activation_dtype;
  std::unique_ptr<FillPass> pass(new FillPass(model, maps, split));
  RF_ASSIGN_OR_RETURN(pass->kv_, backend.Allocate(dtype, {max_rows, 2 * int64_t{config.kv_width()}}));
  if (maps != nullptr) {
    RF_ASSIGN_OR_RETURN(pass->input_, backend.Allocate(dtype, {max_rows, config.hidden}));
  }
  if (maps != nullptr && !maps->manifest().folded) {
    RF_ASSIGN_OR_RETURN(pass->mapped_, backend.Allocate(dtype, {max_rows, config.hidden}));
  }
  return pass;
}

absl::Status FillPass::Run(kernels::Stream& stream, const Args& args) {
  const int64_t rows = args.hidden.dim(0);
  const TensorView kv = kv_.view().Rows(0, rows);
  TensorView input;
  if (maps_ != nullptr) {
    input = input_.view().Rows(0, rows);  // cast once for all layers
    RF_RETURN_IF_ERROR(model_.backend().Cast(stream, {args.hidden, input}));
  }
  for (int layer = split_; layer < model_.config().layers; ++layer) {
    if (layer == split_ || maps_ == nullptr) {
      RF_RETURN_IF_ERROR(model_.ProjectKv(stream, *args.workspace, layer, args.hidden, kv));
    } else {
      RF_RETURN_IF_ERROR(ApplyMap(stream, layer, input, kv));
    }
    RF_RETURN_IF_ERROR(model_.WriteKv(stream, layer, kv, *args.batch, *args.cache));
    if (args.after_layer) RF_RETURN_IF_ERROR(args.after_layer(layer));
  }
  return absl::OkStatus();
}

absl::Status FillPass::Predict(kernels::Stream& stream, model::Workspace& workspace, int layer,
                               const TensorView& hidden, const TensorView& kv) {
  if (maps_ == nullptr) return model_.ProjectKv(stream, workspace, layer, hidden, kv);
  const TensorView input = input_.view().Rows(0, hidden.dim(0));
  RF_RETURN_IF_ERROR(model_.backend().Cast(stream, {hidden, input}));
  return ApplyMap(stream, layer, input, kv);
}

absl::Status FillPass::ApplyMap(kernels::Stream& stream, int layer, const TensorView& input,
                                const TensorView& kv) {
  if (maps_->manifest().folded) return maps_->Apply(stream, layer, input, kv);
  const TensorView mapped = mapped_.view().Rows(0, input.dim(0));
  RF_RETURN_IF_ERROR(maps_->Apply(stream, layer, input, mapped));
  return model_.ProjectKvNormed(stream, layer, mapped, kv);
}

}  // namespace ridgefill::runtime
