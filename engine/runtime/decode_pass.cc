#include "engine/runtime/decode_pass.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/cache/block_pool.h"
#include "engine/runtime/host_bytes.h"
#include "engine/runtime/sequence_pass.h"

namespace ridgefill::runtime {

static_assert(cache::kTokensPerBlock == kernels::kBlockTokens);

absl::StatusOr<std::unique_ptr<DecodePass>> DecodePass::Create(const model::Model& model, ridge::MapSets maps,
                                                               const Options& options) {
  std::unique_ptr<DecodePass> pass(new DecodePass(model));
  RF_RETURN_IF_ERROR(pass->Allocate(maps, options));
  return pass;
}

absl::Status DecodePass::Allocate(ridge::MapSets maps, const Options& options) {
  const model::ModelConfig& config = model_.config();
  const int64_t rows = std::max(options.decode_rows, options.piece_rows);
  // Enough that prompt log-probabilities do not go row by row.
  const int64_t logit_rows = std::max<int64_t>(options.decode_rows, 16);
  RF_ASSIGN_OR_RETURN(
      cache_, backend_.NewKvCache({config.layers, options.cache_blocks, config.heads_kv, config.head_dim}));
  RF_ASSIGN_OR_RETURN(workspace_, model_.NewWorkspace(std::max(rows, logit_rows)));
  RF_ASSIGN_OR_RETURN(ids_, backend_.Allocate(kernels::DType::kI32, {rows}));
  RF_ASSIGN_OR_RETURN(hidden_, backend_.Allocate(kernels::DType::kF32, {rows, config.hidden}));
  RF_ASSIGN_OR_RETURN(logits_, backend_.Allocate(kernels::DType::kF32, {logit_rows, config.vocab}));
  host_logits_.resize(logit_rows * config.vocab);
  if (maps.empty()) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(fills_, CreateFillPasses(model_, maps, rows));
  RF_ASSIGN_OR_RETURN(norms_, backend_.Allocate(kernels::DType::kF32, {rows}));
  if (!AnyNeedsPrevious(fills_)) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(previous_, backend_.Allocate(kernels::DType::kF32, {rows, config.hidden}));
  return absl::OkStatus();
}

absl::Status DecodePass::WriteKv(const KvBody& kv, absl::string_view payload,
                                 absl::Span<const int32_t> blocks) {
  const int64_t layer_bytes = kv.token_count * cache_->spec().token_bytes();
  absl::Span<const char> bytes(payload.data(), payload.size());
  for (int layer = kv.layer_begin; layer < kv.layer_end; ++layer) {
    const kernels::KvSpan span{layer, blocks, kv.token_begin, kv.token_count};
    RF_RETURN_IF_ERROR(backend_.WriteKv(*stream_, *cache_, span, bytes.subspan(0, layer_bytes)));
    bytes.remove_prefix(layer_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<float>> DecodePass::Decode(absl::Span<const DecodeRow> rows) {
  absl::StatusOr<absl::Span<float>> logits = DecodeRows(rows);
  // What was enqueued before an error may still read host memory.
  if (!logits.ok()) Synchronize().IgnoreError();
  return logits;
}

absl::StatusOr<absl::Span<float>> DecodePass::DecodeRows(absl::Span<const DecodeRow> rows) {
  const int64_t count = static_cast<int64_t>(rows.size());
  tokens_.clear();
  positions_.clear();
  sequences_.clear();
  for (const DecodeRow& row : rows) {
    sequences_.push_back({static_cast<int64_t>(tokens_.size()), 1, row.blocks});
    tokens_.push_back(row.token);
    positions_.push_back(row.position);
  }
  const kernels::TensorView hidden = hidden_.view().Rows(0, count);
  RF_ASSIGN_OR_RETURN(batch_,
                      backend_.NewBatch({positions_, sequences_, kernels::Phase::kDecode}, &model_.rope()));
  RF_RETURN_IF_ERROR(EmbedRows(tokens_, hidden));
  model::ForwardArgs args;
  args.batch = batch_.get();
  args.cache = cache_.get();
  args.phase = kernels::Phase::kDecode;
  args.hidden = hidden;
  args.layer_end = model_.config().layers;
  args.workspace = workspace_.get();
  RF_RETURN_IF_ERROR(model_.Forward(*stream_, args));
  return Logits(kernels::Phase::kDecode, hidden);
}

absl::Status DecodePass::RunPiece(const PieceRows& piece) {
  absl::Status status = PieceLayers(piece);
  status.Update(Synchronize());
  return status;
}

absl::Status DecodePass::PieceLayers(const PieceRows& piece) {
  const int64_t count = static_cast<int64_t>(piece.positions.size());
  const int layers = model_.config().layers;
  const kernels::TensorView hidden = hidden_.view().Rows(0, count);
  if (piece.layer_begin == 0) {
    RF_RETURN_IF_ERROR(EmbedRows(piece.tokens, hidden));
  } else {
    RF_RETURN_IF_ERROR(piece.hidden->Upload(backend_, *stream_, piece.positions, hidden));
  }
  if (piece.layer_begin == layers) return absl::OkStatus();
  sequences_.assign(1, {0, count, piece.blocks});
  RF_ASSIGN_OR_RETURN(
      batch_, backend_.NewBatch({piece.positions, sequences_, kernels::Phase::kPrompt}, &model_.rope()));
  model::ForwardArgs args;
  args.batch = batch_.get();
  args.cache = cache_.get();
  args.phase = kernels::Phase::kPrompt;
  args.hidden = hidden;
  args.layer_begin = piece.layer_begin;
  args.layer_end = layers;
  args.workspace = workspace_.get();
  if (piece.scores != nullptr) {
    args.on_query = [&](int layer, const kernels::TensorView& q) {
      return piece.scores->Add(*stream_, layer, q, {cache_.get(), piece.blocks, piece.positions.front()});
    };
  }
  return model_.Forward(*stream_, args);
}

absl::Status DecodePass::Fill(const FilledRows& rows, std::vector<int32_t>& outliers) {
  absl::Status status = FillLayers(rows, outliers);
  status.Update(Synchronize());
  return status;
}

absl::Status DecodePass::FillLayers(const FilledRows& rows, std::vector<int32_t>& outliers) {
  RF_CHECK(rows.count <= max_piece_rows());
  FillPass& fill = OfSplit(fills_, rows.split);
  positions_ = Positions(rows.begin, rows.begin + rows.count);
  FillPass::Args args;
  args.rows.hidden = hidden_.view().Rows(0, rows.count);
  RF_RETURN_IF_ERROR(rows.hidden->Upload(backend_, *stream_, positions_, args.rows.hidden));
  RF_ASSIGN_OR_RETURN(const std::vector<float> norms, RowNorms(backend_, *stream_, args.rows.hidden, norms_));
  std::vector<int32_t> previous;
  for (size_t i = 0; i < positions_.size(); ++i) {
    const int32_t row = positions_[i];
    const bool after_outlier = !outliers.empty() && outliers.back() == row - 1;
    previous.push_back(static_cast<int32_t>(ridge::PreviousRow(row, after_outlier)));
    if (ridge::IsOutlier(row, norms[i], fill.manifest().outlier_threshold)) outliers.push_back(row);
  }
  if (fill.needs_previous()) {
    args.rows.previous = previous_.view().Rows(0, rows.count);
    RF_RETURN_IF_ERROR(rows.hidden->Upload(backend_, *stream_, previous, args.rows.previous));
  }
  args.positions = positions_;
  args.block_table = rows.blocks;
  args.cache = cache_.get();
  args.workspace = workspace_.get();
  return fill.Run(*stream_, args);
}

absl::StatusOr<std::unique_ptr<SelectionScores>> DecodePass::NewProbe(int split, int64_t probe_begin,
                                                                      int64_t tokens) {
  return SelectionScores::CreateProbe(model_, split, probe_begin, tokens, *stream_);
}

absl::StatusOr<absl::Span<float>> DecodePass::PieceLogits(int64_t begin, int64_t count) {
  return Logits(kernels::Phase::kPrompt, hidden_.view().Rows(begin, count));
}

absl::Status DecodePass::EmbedRows(absl::Span<const int32_t> tokens, const kernels::TensorView& hidden) {
  const kernels::TensorView ids = ids_.view().Rows(0, hidden.dim(0));
  RF_RETURN_IF_ERROR(backend_.CopyFromHost(*stream_, HostBytes(tokens), ids));
  return model_.Embed(*stream_, ids, hidden);
}

absl::StatusOr<absl::Span<float>> DecodePass::Logits(kernels::Phase phase,
                                                     const kernels::TensorView& hidden) {
  const int64_t rows = hidden.dim(0);
  RF_CHECK(rows <= max_logit_rows());
  const kernels::TensorView logits = logits_.view().Rows(0, rows);
  const absl::Span<float> host(host_logits_.data(), logits.elements());
  RF_RETURN_IF_ERROR(model_.Logits(*stream_, *workspace_, phase, hidden, logits));
  RF_RETURN_IF_ERROR(backend_.CopyToHost(*stream_, logits, HostBytes(host)));
  RF_RETURN_IF_ERROR(Synchronize());
  return host;
}

}  // namespace ridgefill::runtime
