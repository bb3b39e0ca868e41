#include "engine/runtime/sequence_pass.h"

#include <algorithm>
#include <numeric>

#include "engine/base/float16.h"
#include "engine/base/status.h"
#include "engine/runtime/host_bytes.h"

namespace ridgefill::runtime {

using kernels::DType;
using kernels::TensorView;

std::vector<int32_t> Positions(int64_t begin, int64_t end) {
  std::vector<int32_t> positions(end - begin);
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(begin));
  return positions;
}

SequencePass::SequencePass(const model::Model& model, int64_t max_tokens)
    : model_(model),
      max_tokens_(max_tokens),
      blocks_(Positions(0, (max_tokens + kernels::kBlockTokens - 1) / kernels::kBlockTokens)),
      stream_(model.backend().NewStream()) {}

absl::StatusOr<std::unique_ptr<SequencePass>> SequencePass::Create(const model::Model& model,
                                                                   int64_t max_tokens, int64_t max_rows) {
  const model::ModelConfig& config = model.config();
  kernels::Backend& backend = model.backend();
  std::unique_ptr<SequencePass> pass(new SequencePass(model, max_tokens));
  kernels::KvCacheSpec spec;
  spec.layers = config.layers;
  spec.blocks = static_cast<int64_t>(pass->blocks_.size());
  spec.kv_heads = config.heads_kv;
  spec.head_dim = config.head_dim;
  RF_ASSIGN_OR_RETURN(pass->cache_, backend.NewKvCache(spec));
  RF_ASSIGN_OR_RETURN(pass->workspace_, model.NewWorkspace(max_rows));
  RF_ASSIGN_OR_RETURN(pass->ids_, backend.Allocate(DType::kI32, {max_rows}));
  RF_ASSIGN_OR_RETURN(pass->norms_, backend.Allocate(DType::kF32, {max_rows}));
  return pass;
}

absl::Status SequencePass::Embed(absl::Span<const int32_t> ids, const TensorView& hidden) {
  const TensorView view = ids_.view().Rows(0, static_cast<int64_t>(ids.size()));
  RF_RETURN_IF_ERROR(backend().CopyFromHost(*stream_, HostBytes(ids), view));
  RF_RETURN_IF_ERROR(model_.Embed(*stream_, view, hidden));
  return backend().Synchronize(*stream_);
}

absl::Status SequencePass::Forward(const Layers& layers) {
  return WithBatch(layers.positions, [&](const kernels::Batch& batch) {
    model::ForwardArgs args;
    args.batch = &batch;
    args.cache = cache_.get();
    args.hidden = layers.hidden;
    args.layer_begin = layers.begin;
    args.layer_end = layers.end;
    args.workspace = workspace_.get();
    args.on_kv = layers.on_kv;
    args.on_query = layers.on_query;
    return model_.Forward(*stream_, args);
  });
}

absl::Status SequencePass::WithBatch(absl::Span<const int32_t> positions, BatchWork work) {
  const kernels::SequenceRows rows{0, static_cast<int64_t>(positions.size()), blocks_};
  kernels::BatchSpec spec;
  spec.positions = positions;
  spec.sequences = absl::MakeConstSpan(&rows, 1);
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Batch> batch, backend().NewBatch(spec, &model_.rope()));
  absl::Status status = work(*batch);
  status.Update(backend().Synchronize(*stream_));  // the device may still read the batch
  return status;
}

absl::StatusOr<std::vector<float>> SequencePass::RowNorms(const TensorView& hidden) {
  const TensorView norms = norms_.view().Rows(0, hidden.dim(0));
  RF_RETURN_IF_ERROR(backend().RowNorm(*stream_, {hidden, norms}));
  return Floats(norms);
}

absl::Status SequencePass::Gather(const TensorView& x, absl::Span<const int32_t> index,
                                  const TensorView& out) {
  const TensorView view = ids_.view().Rows(0, static_cast<int64_t>(index.size()));
  RF_RETURN_IF_ERROR(backend().CopyFromHost(*stream_, HostBytes(index), view));
  RF_RETURN_IF_ERROR(backend().GatherRows(*stream_, {x, view, out}));
  return backend().Synchronize(*stream_);
}

absl::StatusOr<std::vector<float>> SequencePass::Floats(const TensorView& x) {
  std::vector<float> out(x.elements());
  if (x.dtype == DType::kF32) {
    RF_RETURN_IF_ERROR(backend().CopyToHost(*stream_, x, HostBytes(absl::MakeSpan(out))));
    RF_RETURN_IF_ERROR(backend().Synchronize(*stream_));
    return out;
  }
  if (x.dtype != DType::kBF16) return absl::InternalError("SequencePass::Floats: " + x.DebugString());
  std::vector<uint16_t> bits(x.elements());
  RF_RETURN_IF_ERROR(backend().CopyToHost(*stream_, x, HostBytes(absl::MakeSpan(bits))));
  RF_RETURN_IF_ERROR(backend().Synchronize(*stream_));
  std::transform(bits.begin(), bits.end(), out.begin(), base::BF16ToF32);
  return out;
}

}  // namespace ridgefill::runtime
