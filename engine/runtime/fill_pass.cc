#include "engine/runtime/fill_pass.h"

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/runtime/host_bytes.h"

namespace ridgefill::runtime {

using kernels::DType;
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
  kernels::Backend& backend = model.backend();
  const int64_t columns = 2 * int64_t{model.config().kv_width()};
  std::unique_ptr<FillPass> pass(new FillPass(model, maps, split));
  RF_ASSIGN_OR_RETURN(pass->kv_,
                      backend.Allocate(backend.capabilities().activation_dtype, {max_rows, columns}));
  if (maps != nullptr) RF_RETURN_IF_ERROR(pass->AllocateInputs(max_rows));
  return pass;
}

absl::Status FillPass::AllocateInputs(int64_t max_rows) {
  const ridge::MapSetManifest& m = maps_->manifest();
  kernels::Backend& backend = model_.backend();
  const DType activation = backend.capabilities().activation_dtype;
  const int64_t d = m.hidden;
  RF_ASSIGN_OR_RETURN(input_, backend.Allocate(activation, {max_rows, d}));
  if (m.normalised) RF_RETURN_IF_ERROR(MakeOnes(d));
  if (!m.folded) {
    RF_ASSIGN_OR_RETURN(mapped_, backend.Allocate(activation, {max_rows, d}));
  }
  if (m.mixture > 1) {
    RF_ASSIGN_OR_RETURN(index_, backend.Allocate(DType::kI32, {max_rows}));
    RF_ASSIGN_OR_RETURN(scores_, backend.Allocate(DType::kF32, {max_rows, m.mixture}));
    RF_ASSIGN_OR_RETURN(ordered_hidden_, backend.Allocate(DType::kF32, {max_rows, d}));
  }
  if (!m.previous_row) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(previous_, backend.Allocate(activation, {max_rows, d}));
  RF_ASSIGN_OR_RETURN(sum_, backend.Allocate(DType::kF32, {max_rows, 2 * int64_t{m.kv_width}}));
  if (m.mixture > 1) {
    RF_ASSIGN_OR_RETURN(ordered_previous_, backend.Allocate(DType::kF32, {max_rows, d}));
  }
  return absl::OkStatus();
}

absl::Status FillPass::MakeOnes(int64_t count) {
  kernels::Backend& backend = model_.backend();
  RF_ASSIGN_OR_RETURN(ones_, backend.Allocate(DType::kF32, {count}));
  const std::vector<float> ones(count, 1.0f);
  const auto stream = backend.NewStream();
  RF_RETURN_IF_ERROR(backend.CopyFromHost(*stream, HostBytes(absl::MakeConstSpan(ones)), ones_.view()));
  return backend.Synchronize(*stream);
}

absl::Status FillPass::Run(kernels::Stream& stream, const Args& args) {
  RF_RETURN_IF_ERROR(Prepare(stream, args.rows));
  RF_RETURN_IF_ERROR(MakeBatch(args));
  for (int layer = split_; layer < model_.config().layers; ++layer) {
    RF_ASSIGN_OR_RETURN(const TensorView kv, LayerKv(stream, *args.workspace, layer));
    RF_RETURN_IF_ERROR(model_.WriteKv(stream, layer, kv, *batch_, *args.cache));
    if (args.after_layer) RF_RETURN_IF_ERROR(args.after_layer(layer));
  }
  return absl::OkStatus();
}

absl::Status FillPass::Predict(kernels::Stream& stream, model::Workspace& workspace, int layer,
                               const Rows& rows, const TensorView& kv) {
  RF_RETURN_IF_ERROR(Prepare(stream, rows));
  RF_ASSIGN_OR_RETURN(const TensorView placed, LayerKv(stream, workspace, layer));
  kernels::Backend& backend = model_.backend();
  if (order_.empty()) return backend.Cast(stream, {placed, kv});
  std::vector<int32_t> places(order_.size());
  for (size_t place = 0; place < order_.size(); ++place) places[order_[place]] = static_cast<int32_t>(place);
  const TensorView index = index_.view().Rows(0, static_cast<int64_t>(places.size()));
  RF_RETURN_IF_ERROR(backend.CopyFromHost(stream, HostBytes(absl::MakeConstSpan(places)), index));
  if (placed.dtype == DType::kF32) {
    RF_RETURN_IF_ERROR(backend.GatherRows(stream, {placed, index, kv}));
    return backend.Synchronize(stream);
  }
  RF_ASSIGN_OR_RETURN(const kernels::Tensor back, backend.Allocate(placed.dtype, {kv.dim(0), kv.dim(1)}));
  RF_RETURN_IF_ERROR(backend.GatherRows(stream, {placed, index, back.view()}));
  RF_RETURN_IF_ERROR(backend.Cast(stream, {back.view(), kv}));
  return backend.Synchronize(stream);
}

// The rows in the order of their maps, cast once for all layers.
absl::Status FillPass::Prepare(kernels::Stream& stream, const Rows& rows) {
  hidden_ = rows.hidden;
  order_.clear();
  group_ends_ = {rows.hidden.dim(0)};
  if (maps_ == nullptr) return absl::OkStatus();
  inputs_.hidden = input_.view().Rows(0, rows.hidden.dim(0));
  RF_RETURN_IF_ERROR(Input(stream, rows.hidden, inputs_.hidden));
  TensorView previous = rows.previous;
  if (maps_->manifest().mixture > 1) {
    RF_RETURN_IF_ERROR(Group(stream, inputs_.hidden));
    RF_ASSIGN_OR_RETURN(hidden_, Ordered(stream, rows.hidden, ordered_hidden_));
    RF_RETURN_IF_ERROR(Input(stream, hidden_, inputs_.hidden));
    if (needs_previous()) {
      RF_ASSIGN_OR_RETURN(previous, Ordered(stream, rows.previous, ordered_previous_));
    }
  }
  if (!needs_previous()) return absl::OkStatus();
  inputs_.previous = previous_.view().Rows(0, rows.hidden.dim(0));
  return Input(stream, previous, inputs_.previous);
}

absl::Status FillPass::Input(kernels::Stream& stream, const TensorView& x, const TensorView& input) {
  kernels::Backend& backend = model_.backend();
  if (!maps_->manifest().normalised) return backend.Cast(stream, {x, input});
  return backend.RmsNorm(stream, {x, ones_.view(), ridge::kInputEpsilon, input});
}

// Which map each row takes: waits for the scores.
absl::Status FillPass::Group(kernels::Stream& stream, const TensorView& hidden) {
  kernels::Backend& backend = model_.backend();
  const int64_t rows = hidden.dim(0), mixture = maps_->manifest().mixture;
  const TensorView scores = scores_.view().Rows(0, rows);
  std::vector<float> host(rows * mixture);
  RF_RETURN_IF_ERROR(maps_->Score(stream, hidden, scores));
  RF_RETURN_IF_ERROR(backend.CopyToHost(stream, scores, HostBytes(absl::MakeSpan(host))));
  RF_RETURN_IF_ERROR(backend.Synchronize(stream));
  std::vector<int32_t> map_of(rows);
  group_ends_.assign(mixture, 0);
  for (int64_t row = 0; row < rows; ++row) {
    const auto first = host.begin() + row * mixture;
    map_of[row] = static_cast<int32_t>(std::max_element(first, first + mixture) - first);
    ++group_ends_[map_of[row]];
  }
  std::partial_sum(group_ends_.begin(), group_ends_.end(), group_ends_.begin());
  order_.resize(rows);
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) { return map_of[a] < map_of[b]; });
  const TensorView index = index_.view().Rows(0, rows);
  return backend.CopyFromHost(stream, HostBytes(absl::MakeConstSpan(order_)), index);
}

absl::StatusOr<TensorView> FillPass::Ordered(kernels::Stream& stream, const TensorView& x,
                                             const kernels::Tensor& buffer) {
  const TensorView out = buffer.view().Rows(0, x.dim(0));
  const TensorView index = index_.view().Rows(0, x.dim(0));
  RF_RETURN_IF_ERROR(model_.backend().GatherRows(stream, {x, index, out}));
  return out;
}

// Each group goes as a sequence of its own, over the same blocks: its positions ascend.
absl::Status FillPass::MakeBatch(const Args& args) {
  positions_.assign(args.positions.begin(), args.positions.end());
  for (size_t place = 0; place < order_.size(); ++place) positions_[place] = args.positions[order_[place]];
  std::vector<kernels::SequenceRows> groups;
  int64_t begin = 0;
  for (int64_t end : group_ends_) {
    if (end > begin) groups.push_back({begin, end - begin, args.block_table});
    begin = end;
  }
  kernels::BatchSpec spec;
  spec.positions = positions_;
  spec.sequences = groups;
  RF_ASSIGN_OR_RETURN(batch_, model_.backend().NewBatch(spec, &model_.rope()));
  return absl::OkStatus();
}

// Before K-norm and RoPE, by place; the split layer's are exact.
absl::StatusOr<TensorView> FillPass::LayerKv(kernels::Stream& stream, model::Workspace& workspace,
                                             int layer) {
  const int64_t rows = hidden_.dim(0);
  const TensorView kv = kv_.view().Rows(0, rows);
  if (layer == split_ || maps_ == nullptr) {
    RF_RETURN_IF_ERROR(model_.ProjectKv(stream, workspace, layer, hidden_, kv));
    return kv;
  }
  if (!maps_->manifest().folded) {
    const TensorView mapped = mapped_.view().Rows(0, rows);
    RF_RETURN_IF_ERROR(ApplyMaps(stream, layer, mapped));
    RF_RETURN_IF_ERROR(model_.ProjectKvNormed(stream, layer, mapped, kv));
    return kv;
  }
  const TensorView y = needs_previous() ? sum_.view().Rows(0, rows) : kv;
  RF_RETURN_IF_ERROR(ApplyMaps(stream, layer, y));
  return y;
}

absl::Status FillPass::ApplyMaps(kernels::Stream& stream, int layer, const TensorView& y) {
  int64_t begin = 0;
  for (size_t map = 0; map < group_ends_.size(); ++map) {
    const int64_t rows = group_ends_[map] - begin;
    if (rows == 0) continue;
    ridge::DeviceMaps::Inputs inputs;
    inputs.hidden = inputs_.hidden.Rows(begin, rows);
    if (needs_previous()) inputs.previous = inputs_.previous.Rows(begin, rows);
    RF_RETURN_IF_ERROR(maps_->Apply(stream, layer, static_cast<int>(map), inputs, y.Rows(begin, rows)));
    begin = group_ends_[map];
  }
  return absl::OkStatus();
}

absl::StatusOr<FillPasses> CreateFillPasses(const model::Model& model, ridge::MapSets maps,
                                            int64_t max_rows) {
  FillPasses passes;
  for (const ridge::DeviceMaps* set : maps) {
    RF_ASSIGN_OR_RETURN(auto pass, FillPass::Create(model, *set, max_rows));
    passes.push_back(std::move(pass));
  }
  return passes;
}

FillPass& OfSplit(const FillPasses& passes, int split) {
  const auto found = std::find_if(passes.begin(), passes.end(),
                                  [split](const auto& pass) { return pass->split() == split; });
  RF_CHECK(found != passes.end());
  return **found;
}

bool AnyNeedsPrevious(const FillPasses& passes) {
  return std::any_of(passes.begin(), passes.end(), [](const auto& pass) { return pass->needs_previous(); });
}

absl::StatusOr<std::vector<float>> RowNorms(kernels::Backend& backend, kernels::Stream& stream,
                                            const TensorView& hidden, const kernels::Tensor& buffer) {
  std::vector<float> norms(hidden.dim(0));
  const TensorView device = buffer.view().Rows(0, hidden.dim(0));
  RF_RETURN_IF_ERROR(backend.RowNorm(stream, {hidden, device}));
  RF_RETURN_IF_ERROR(backend.CopyToHost(stream, device, HostBytes(absl::MakeSpan(norms))));
  RF_RETURN_IF_ERROR(backend.Synchronize(stream));
  return norms;
}

}  // namespace ridgefill::runtime
