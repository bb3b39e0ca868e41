#include "engine/runtime/selection_scores.h"

#include <algorithm>
#include <cmath>

#include "engine/base/status.h"
#include "engine/ridge/selection.h"
#include "engine/runtime/host_bytes.h"
#include "engine/runtime/sequence_pass.h"

namespace ridgefill::runtime {

SelectionScores::SelectionScores(const model::Model& model, int split, int64_t tokens)
    : model_(model),
      layer_begin_(std::max(0, split - ridge::kScoringLayers)),
      layer_end_(split),
      tokens_(tokens),
      scoring_begin_(std::max<int64_t>(0, tokens - ridge::kScoringRows)) {}

absl::StatusOr<std::unique_ptr<SelectionScores>> SelectionScores::Create(const model::Model& model, int split,
                                                                         int64_t tokens,
                                                                         kernels::Stream& stream) {
  std::unique_ptr<SelectionScores> scores(new SelectionScores(model, split, tokens));
  kernels::Backend& backend = model.backend();
  const int64_t heads = int64_t{scores->layer_end_ - scores->layer_begin_} * model.config().heads_kv;
  RF_ASSIGN_OR_RETURN(scores->mass_, backend.Allocate(kernels::DType::kF32, {heads, tokens}));
  const std::vector<float> zeros(heads * tokens);
  RF_RETURN_IF_ERROR(
      backend.CopyFromHost(stream, HostBytes(absl::MakeConstSpan(zeros)), scores->mass_.view()));
  RF_RETURN_IF_ERROR(backend.Synchronize(stream));
  return scores;
}

absl::Status SelectionScores::Add(kernels::Stream& stream, int layer, const kernels::TensorView& q,
                                  const Chunk& chunk) {
  const int64_t begin = std::max(chunk.row_begin, scoring_begin_),
                end = std::min(chunk.row_begin + q.dim(0), tokens_);
  if (layer < layer_begin_ || layer >= layer_end_ || begin >= end) return absl::OkStatus();
  if (begin != batch_begin_) {
    const std::vector<int32_t> positions = Positions(begin, end);
    const kernels::SequenceRows rows{0, end - begin, chunk.block_table};
    kernels::BatchSpec spec;
    spec.positions = positions;
    spec.sequences = absl::MakeConstSpan(&rows, 1);
    RF_ASSIGN_OR_RETURN(auto batch, model_.backend().NewBatch(spec, nullptr));
    batches_.push_back(std::move(batch));
    batch_begin_ = begin;
  }
  const int64_t heads = model_.config().heads_kv;
  kernels::AttentionMassArgs args;
  args.batch = batches_.back().get();
  args.q = q.Rows(begin - chunk.row_begin, end - begin);
  args.cache = chunk.cache;
  args.layer = layer;
  args.scale = 1.0f / std::sqrt(static_cast<float>(model_.config().head_dim));
  args.mass = mass_.view().Rows((layer - layer_begin_) * heads, heads);
  return model_.backend().AttentionMass(stream, args);
}

absl::StatusOr<std::vector<float>> SelectionScores::Mean(kernels::Stream& stream) const {
  std::vector<float> mass(mass_.view().elements());
  RF_RETURN_IF_ERROR(model_.backend().CopyToHost(stream, mass_.view(), HostBytes(absl::MakeSpan(mass))));
  RF_RETURN_IF_ERROR(model_.backend().Synchronize(stream));
  std::vector<float> mean(tokens_);
  for (int64_t at = 0; at < static_cast<int64_t>(mass.size()); at += tokens_) {
    for (int64_t row = 0; row < tokens_; ++row) mean[row] += mass[at + row];
  }
  const int64_t queries = (tokens_ - scoring_begin_) * (layer_end_ - layer_begin_) * model_.config().heads_q;
  for (float& score : mean) score /= static_cast<float>(queries);
  return mean;
}

}  // namespace ridgefill::runtime
