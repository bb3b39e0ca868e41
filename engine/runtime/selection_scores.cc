#include "engine/runtime/selection_scores.h"

#include <algorithm>
#include <cmath>

#include "engine/base/status.h"
#include "engine/ridge/selection.h"
#include "engine/runtime/host_bytes.h"
#include "engine/runtime/sequence_pass.h"

namespace ridgefill::runtime {

absl::StatusOr<std::unique_ptr<SelectionScores>> SelectionScores::Create(const model::Model& model, int split,
                                                                         int64_t tokens,
                                                                         kernels::Stream& stream) {
  Scope scope{std::max(0, split - ridge::kScoringLayers), split};
  scope.row_begin = std::max<int64_t>(0, tokens - ridge::kScoringRows);
  scope.tokens = tokens;
  return Make(model, scope, stream);
}

absl::StatusOr<std::unique_ptr<SelectionScores>> SelectionScores::CreateProbe(const model::Model& model,
                                                                              int split, int64_t probe_begin,
                                                                              int64_t tokens,
                                                                              kernels::Stream& stream) {
  return Make(model, {split, model.config().layers, probe_begin, tokens, kernels::MassReduction::kMax},
              stream);
}

absl::StatusOr<std::unique_ptr<SelectionScores>> SelectionScores::Make(const model::Model& model,
                                                                       const Scope& scope,
                                                                       kernels::Stream& stream) {
  std::unique_ptr<SelectionScores> scores(new SelectionScores(model, scope));
  kernels::Backend& backend = model.backend();
  const int64_t layers = scope.sums() ? scope.layer_end - scope.layer_begin : 1;
  const int64_t heads = layers * model.config().heads_kv;
  RF_ASSIGN_OR_RETURN(scores->mass_, backend.Allocate(kernels::DType::kF32, {heads, scope.tokens}));
  const std::vector<float> zeros(heads * scope.tokens);
  RF_RETURN_IF_ERROR(
      backend.CopyFromHost(stream, HostBytes(absl::MakeConstSpan(zeros)), scores->mass_.view()));
  RF_RETURN_IF_ERROR(backend.Synchronize(stream));
  return scores;
}

absl::Status SelectionScores::Add(kernels::Stream& stream, int layer, const kernels::TensorView& q,
                                  const Chunk& chunk) {
  const int64_t begin = std::max(chunk.row_begin, scope_.row_begin),
                end = std::min(chunk.row_begin + q.dim(0), scope_.tokens);
  if (layer < scope_.layer_begin || layer >= scope_.layer_end || begin >= end) return absl::OkStatus();
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
  args.reduction = scope_.reduction;
  args.mass = mass_.view().Rows(scope_.sums() ? (layer - scope_.layer_begin) * heads : 0, heads);
  return model_.backend().AttentionMass(stream, args);
}

absl::StatusOr<std::vector<float>> SelectionScores::Read(kernels::Stream& stream) const {
  std::vector<float> mass(mass_.view().elements());
  RF_RETURN_IF_ERROR(model_.backend().CopyToHost(stream, mass_.view(), HostBytes(absl::MakeSpan(mass))));
  RF_RETURN_IF_ERROR(model_.backend().Synchronize(stream));
  std::vector<float> scores(scope_.tokens);
  for (size_t i = 0; i < mass.size(); ++i) {
    float& score = scores[static_cast<int64_t>(i) % scope_.tokens];
    score = std::max(score, mass[i]);
  }
  if (!scope_.sums()) return scores;
  const int64_t queries =
      (scope_.tokens - scope_.row_begin) * model_.config().heads_q / model_.config().heads_kv;
  for (float& score : scores) score /= static_cast<float>(queries);
  return scores;
}

}  // namespace ridgefill::runtime
