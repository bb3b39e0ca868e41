#include "engine/fit/accumulator.h"

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/ridge/fill_plan.h"

namespace ridgefill::fit {
namespace {

using kernels::DType;
using kernels::TensorView;

constexpr int64_t kMaxGramRows = 4096;  // beyond, f32 products would lose digits

// sum[j] += sum over rows of values[row, j]; squares likewise. Every row once, in fp64.
void AddColumns(const std::vector<float>& values, std::vector<double>& sum, std::vector<double>* squares) {
  const size_t columns = sum.size();
  for (size_t at = 0; at < values.size(); at += columns) {
    for (size_t j = 0; j < columns; ++j) sum[j] += values[at + j];
    if (squares == nullptr) continue;
    for (size_t j = 0; j < columns; ++j) (*squares)[j] += double{values[at + j]} * values[at + j];
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowWalker>> RowWalker::Create(const model::Model& model, int split,
                                                             float outlier_threshold, int64_t max_tokens,
                                                             int64_t chunk_rows) {
  const model::ModelConfig& config = model.config();
  kernels::Backend& backend = model.backend();
  const DType activation = backend.capabilities().activation_dtype;
  std::unique_ptr<RowWalker> walker(new RowWalker(split, outlier_threshold));
  RF_ASSIGN_OR_RETURN(walker->pass_, runtime::SequencePass::Create(model, max_tokens, chunk_rows));
  RF_ASSIGN_OR_RETURN(walker->hidden_, backend.Allocate(DType::kF32, {chunk_rows, config.hidden}));
  RF_ASSIGN_OR_RETURN(walker->kept_, backend.Allocate(DType::kF32, {chunk_rows, config.hidden}));
  RF_ASSIGN_OR_RETURN(walker->kv_,
                      backend.Allocate(activation, {chunk_rows, 2 * int64_t{config.kv_width()}}));
  RF_ASSIGN_OR_RETURN(walker->last_,
                      backend.Allocate(activation, {chunk_rows, 2 * int64_t{config.kv_width()}}));
  return walker;
}

absl::Status RowWalker::LowerLayers(absl::Span<const int32_t> ids, absl::Span<const int32_t> positions) {
  const TensorView hidden = Hidden(static_cast<int64_t>(ids.size()));
  RF_RETURN_IF_ERROR(pass_->Embed(ids, hidden));
  return pass_->Forward({positions, hidden, 0, split_, {}});
}

absl::Status RowWalker::LateLayers(absl::Span<const int32_t> positions, absl::Span<const int32_t> kept,
                                   OnTargets on_targets) {
  const int last = pass_->model().config().layers - 1;
  const int64_t rows = static_cast<int64_t>(positions.size());
  const auto show = [&](int layer, const TensorView& kv) -> absl::Status {
    if (layer == split_ || kept.empty()) return absl::OkStatus();
    const TensorView gathered = kv_.view().Rows(0, static_cast<int64_t>(kept.size()));
    RF_RETURN_IF_ERROR(pass_->Gather(kv, kept, gathered));
    return on_targets(layer, gathered);
  };
  RF_RETURN_IF_ERROR(pass_->Forward({positions, Hidden(rows), split_, last, show}));
  if (kept.empty()) return absl::OkStatus();
  // Of the last layer nothing is needed but K and V.
  const TensorView kv = last_.view().Rows(0, rows);
  RF_RETURN_IF_ERROR(pass_->model().ProjectKv(pass_->stream(), pass_->workspace(), last, Hidden(rows), kv));
  return show(last, kv);
}

absl::Status RowWalker::Walk(absl::Span<const int32_t> document, OnChunk on_chunk, OnTargets on_targets) {
  const int64_t tokens = static_cast<int64_t>(document.size());
  for (int64_t begin = 0; begin < tokens; begin += pass_->max_rows()) {
    const int64_t end = std::min(tokens, begin + pass_->max_rows());
    const std::vector<int32_t> positions = runtime::Positions(begin, end);
    RF_RETURN_IF_ERROR(LowerLayers(document.subspan(begin, end - begin), positions));
    RF_ASSIGN_OR_RETURN(const std::vector<float> norms, pass_->RowNorms(Hidden(end - begin)));
    ChunkRows rows;
    rows.position = begin;
    for (size_t i = 0; i < norms.size(); ++i) {
      if (!ridge::IsOutlier(positions[i], norms[i], threshold_)) rows.kept.push_back(static_cast<int32_t>(i));
    }
    if (!rows.kept.empty()) {
      rows.hidden = kept_.view().Rows(0, static_cast<int64_t>(rows.kept.size()));
      RF_RETURN_IF_ERROR(pass_->Gather(Hidden(end - begin), rows.kept, rows.hidden));
      RF_RETURN_IF_ERROR(on_chunk(rows));
    }
    // Also where no row is kept: later chunks attend to this one's K and V.
    RF_RETURN_IF_ERROR(LateLayers(positions, rows.kept, on_targets));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> RowWalker::Norms(absl::Span<const int32_t> document) {
  std::vector<float> all;
  const int64_t tokens = static_cast<int64_t>(document.size());
  for (int64_t begin = 0; begin < tokens; begin += pass_->max_rows()) {
    const int64_t end = std::min(tokens, begin + pass_->max_rows());
    RF_RETURN_IF_ERROR(LowerLayers(document.subspan(begin, end - begin), runtime::Positions(begin, end)));
    RF_ASSIGN_OR_RETURN(const std::vector<float> norms, pass_->RowNorms(Hidden(end - begin)));
    all.insert(all.end(), norms.begin(), norms.end());
  }
  return all;
}

absl::StatusOr<std::unique_ptr<SumsAccumulator>> SumsAccumulator::Create(const model::Model& model,
                                                                         const SumsKey& key,
                                                                         int64_t max_tokens,
                                                                         int64_t chunk_rows) {
  RF_CHECK(chunk_rows <= kMaxGramRows);
  kernels::Backend& backend = model.backend();
  const int64_t d = key.hidden, kv = 2 * int64_t{key.kv_width};
  std::unique_ptr<SumsAccumulator> out(new SumsAccumulator(key));
  RF_ASSIGN_OR_RETURN(out->walker_,
                      RowWalker::Create(model, key.split, key.outlier_threshold, max_tokens, chunk_rows));
  RF_ASSIGN_OR_RETURN(out->rounded_,
                      backend.Allocate(backend.capabilities().activation_dtype, {chunk_rows, d}));
  RF_ASSIGN_OR_RETURN(out->x_, backend.Allocate(DType::kF32, {chunk_rows, d}));
  RF_ASSIGN_OR_RETURN(out->y_, backend.Allocate(DType::kF32, {chunk_rows, kv}));
  RF_ASSIGN_OR_RETURN(out->product_, backend.Allocate(DType::kF32, {d * std::max(d, kv)}));
  return out;
}

absl::Status SumsAccumulator::Add(absl::Span<const int32_t> document, Sums& sums) {
  return walker_->Walk(
      document, [&](const ChunkRows& rows) { return AddInputs(rows, sums); },
      [&](int layer, const TensorView& kv) { return AddTargets(layer, kv, sums); });
}

absl::Status SumsAccumulator::AddInputs(const ChunkRows& rows, Sums& sums) {
  chunk_kept_ = static_cast<int64_t>(rows.kept.size());
  runtime::SequencePass& pass = walker_->pass();
  const TensorView rounded = rounded_.view().Rows(0, chunk_kept_), x = x_.view().Rows(0, chunk_kept_);
  // Through the activation dtype, as a fill feeds its maps.
  RF_RETURN_IF_ERROR(pass.backend().Cast(pass.stream(), {rows.hidden, rounded}));
  RF_RETURN_IF_ERROR(pass.backend().Cast(pass.stream(), {rounded, x}));
  RF_ASSIGN_OR_RETURN(const std::vector<float> values, pass.Floats(x));
  AddColumns(values, sums.x, nullptr);
  sums.rows += chunk_kept_;
  return AddProduct(x, x, sums.xx);
}

absl::Status SumsAccumulator::AddTargets(int layer, const TensorView& kv, Sums& sums) {
  runtime::SequencePass& pass = walker_->pass();
  const TensorView x = x_.view().Rows(0, chunk_kept_), y = y_.view().Rows(0, chunk_kept_);
  LayerSums& to = sums.late[layer - key_.split - 1];
  RF_RETURN_IF_ERROR(pass.backend().Cast(pass.stream(), {kv, y}));
  RF_ASSIGN_OR_RETURN(const std::vector<float> values, pass.Floats(y));
  AddColumns(values, to.y, &to.yy);
  return AddProduct(x, y, to.xy);
}

absl::Status SumsAccumulator::AddProduct(const TensorView& x, const TensorView& y, std::vector<double>& to) {
  runtime::SequencePass& pass = walker_->pass();
  const int64_t m = x.dim(1), n = y.dim(1);
  const TensorView product = product_.view().Rows(0, m * n).Reshape({m, n});
  RF_RETURN_IF_ERROR(pass.backend().Gram(pass.stream(), {x, y, product}));
  RF_ASSIGN_OR_RETURN(const std::vector<float> values, pass.Floats(product));
  for (size_t i = 0; i < to.size(); ++i) to[i] += values[i];
  return absl::OkStatus();
}

}  // namespace ridgefill::fit
