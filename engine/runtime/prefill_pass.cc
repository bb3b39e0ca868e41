#include "engine/runtime/prefill_pass.h"

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/runtime/host_bytes.h"

namespace ridgefill::runtime {
namespace {

absl::Status SendLayer(PrefillRun& run, int layer) {
  if (!run.sink->Cancelled()) return run.frames->AddLayer(layer);
  return base::Error(absl::StatusCode::kCancelled, "CANCELLED", "cancelled by the decode worker");
}

}  // namespace

static_assert(cache::kTokensPerBlock == kernels::kBlockTokens);

absl::StatusOr<std::unique_ptr<PrefillPass>> PrefillPass::Create(const model::Model& model,
                                                                 const ridge::DeviceMaps* maps,
                                                                 const Options& options) {
  std::unique_ptr<PrefillPass> pass(new PrefillPass(model, maps, options));
  RF_RETURN_IF_ERROR(pass->Allocate());
  return pass;
}

PrefillPass::PrefillPass(const model::Model& model, const ridge::DeviceMaps* maps, const Options& options)
    : model_(model),
      maps_(maps),
      options_(options),
      backend_(model.backend()),
      stream_(backend_.NewStream()) {}

absl::Status PrefillPass::Allocate() {
  const model::ModelConfig& config = model_.config();
  const int64_t rows = options_.chunk_tokens;
  kernels::KvCacheSpec spec{config.layers, options_.cache_blocks, config.heads_kv, config.head_dim};
  RF_ASSIGN_OR_RETURN(cache_, backend_.NewKvCache(spec));
  RF_ASSIGN_OR_RETURN(workspace_, model_.NewWorkspace(rows));
  if (maps_ != nullptr) {
    RF_ASSIGN_OR_RETURN(fill_, FillPass::Create(model_, *maps_, rows));
  }
  RF_ASSIGN_OR_RETURN(ids_, backend_.Allocate(kernels::DType::kI32, {rows}));
  RF_ASSIGN_OR_RETURN(window_, backend_.Allocate(kernels::DType::kF32, {1 + rows, config.hidden}));
  if (fill_ != nullptr && fill_->needs_previous()) {
    RF_ASSIGN_OR_RETURN(previous_, backend_.Allocate(kernels::DType::kF32, {rows, config.hidden}));
  }
  RF_ASSIGN_OR_RETURN(norms_, backend_.Allocate(kernels::DType::kF32, {rows}));
  RF_ASSIGN_OR_RETURN(index_, backend_.Allocate(kernels::DType::kI32, {rows}));
  RF_ASSIGN_OR_RETURN(exact_, backend_.Allocate(kernels::DType::kF32, {rows, config.hidden}));
  return absl::OkStatus();
}

std::unique_ptr<FrameWriter> PrefillPass::NewFrameWriter(KvSink& sink) const {
  return std::make_unique<FrameWriter>(
      FrameWriter::Target{&backend_, stream_.get(), cache_.get(), &sink, options_.frame_bytes});
}

absl::Status PrefillPass::RunChunk(PrefillRun& run) {
  const int64_t count = std::min(options_.chunk_tokens, run.tokens() - run.done);
  RF_CHECK(count > 0);
  absl::Status status = Chunk(run, count);
  // Whatever was enqueued still reads host memory: nothing of it may be freed before the device is through.
  status.Update(backend_.Synchronize(*stream_));
  if (status.ok()) run.done += count;
  return status;
}

absl::Status PrefillPass::Chunk(PrefillRun& run, int64_t count) {
  positions_.resize(count);
  std::iota(positions_.begin(), positions_.end(), static_cast<int32_t>(run.done));
  RF_ASSIGN_OR_RETURN(batch_, NewBatch(run, count));
  RF_RETURN_IF_ERROR(LowerLayers(run, count));
  const int layers = model_.config().layers;
  if (run.work.late_begin == layers) {
    const int32_t last = static_cast<int32_t>(run.tokens() - 1);
    if (run.done + count == run.tokens()) {
      RF_RETURN_IF_ERROR(run.frames->AddHidden(layers, {last}, Hidden(count).Rows(count - 1, 1)));
    }
  } else {
    const int64_t bulk = std::clamp<int64_t>(run.work.tail_begin - run.done, 0, count);
    RF_RETURN_IF_ERROR(SendExactRows(run, count, bulk));
    if (bulk > 0) RF_RETURN_IF_ERROR(FillBulk(run, bulk));
    if (bulk == count) RF_RETURN_IF_ERROR(KeepLast(run, count));
  }
  return run.frames->Flush();
}

absl::Status PrefillPass::LowerLayers(PrefillRun& run, int64_t count) {
  const absl::Span<const int32_t> tokens = absl::MakeConstSpan(run.call->tokens).subspan(run.done, count);
  const kernels::TensorView ids = ids_.view().Rows(0, count), hidden = Hidden(count);
  RF_RETURN_IF_ERROR(backend_.CopyFromHost(*stream_, HostBytes(tokens), ids));
  RF_RETURN_IF_ERROR(model_.Embed(*stream_, ids, hidden));
  run.frames->BeginKv({run.blocks.blocks, run.done, count, 0, run.work.late_begin});
  model::ForwardArgs args;
  args.batch = batch_.get();
  args.cache = cache_.get();
  args.hidden = hidden;
  args.layer_end = run.work.late_begin;
  args.workspace = workspace_.get();
  args.after_layer = [&run](int layer) { return SendLayer(run, layer); };
  return model_.Forward(*stream_, args);
}

// Outliers among the first `bulk` rows of the chunk, and all rows behind them: the tail.
absl::Status PrefillPass::SendExactRows(PrefillRun& run, int64_t count, int64_t bulk) {
  index_host_.clear();
  outlier_.assign(bulk, false);
  std::vector<int32_t> exact;
  if (bulk > 0) {
    RF_ASSIGN_OR_RETURN(const std::vector<float> norms, RowNorms(bulk));
    for (int64_t i = 0; i < bulk; ++i) {
      outlier_[i] = ridge::IsOutlier(positions_[i], norms[i], maps_->manifest().outlier_threshold);
      if (!outlier_[i]) continue;
      index_host_.push_back(static_cast<int32_t>(i));
      exact.push_back(positions_[i]);
    }
  }
  run.outliers.insert(run.outliers.end(), exact.begin(), exact.end());
  for (int64_t i = bulk; i < count; ++i) {
    index_host_.push_back(static_cast<int32_t>(i));
    exact.push_back(positions_[i]);
  }
  if (exact.empty()) return absl::OkStatus();
  const int64_t rows = static_cast<int64_t>(exact.size());
  const kernels::TensorView index = index_.view().Rows(0, rows), gathered = exact_.view().Rows(0, rows);
  RF_RETURN_IF_ERROR(backend_.CopyFromHost(*stream_, HostBytes(absl::MakeConstSpan(index_host_)), index));
  RF_RETURN_IF_ERROR(backend_.GatherRows(*stream_, {Hidden(count), index, gathered}));
  return run.frames->AddHidden(run.work.late_begin, exact, gathered);
}

absl::StatusOr<std::vector<float>> PrefillPass::RowNorms(int64_t rows) {
  std::vector<float> norms(rows);
  const kernels::TensorView device = norms_.view().Rows(0, rows);
  RF_RETURN_IF_ERROR(backend_.RowNorm(*stream_, {Hidden(rows), device}));
  RF_RETURN_IF_ERROR(backend_.CopyToHost(*stream_, device, HostBytes(absl::MakeSpan(norms))));
  RF_RETURN_IF_ERROR(backend_.Synchronize(*stream_));
  return norms;
}

// All rows below the tail, outliers too: frames stay contiguous, and the late pass overwrites what it
// computes.
absl::Status PrefillPass::FillBulk(PrefillRun& run, int64_t bulk) {
  run.frames->BeginKv({run.blocks.blocks, run.done, bulk, run.work.late_begin, model_.config().layers});
  FillPass::Args args;
  args.rows.hidden = Hidden(bulk);
  if (fill_->needs_previous()) {
    RF_RETURN_IF_ERROR(GatherPrevious(run, bulk));
    args.rows.previous = previous_.view().Rows(0, bulk);
  }
  args.positions = absl::MakeConstSpan(positions_).subspan(0, bulk);
  args.block_table = run.blocks.blocks;
  args.cache = cache_.get();
  args.workspace = workspace_.get();
  args.after_layer = [&run](int layer) { return SendLayer(run, layer); };
  return fill_->Run(*stream_, args);
}

absl::Status PrefillPass::GatherPrevious(const PrefillRun& run, int64_t bulk) {
  if (run.done > 0) {
    previous_host_.assign(1, 0);
    const kernels::TensorView index = index_.view().Rows(0, 1);
    RF_RETURN_IF_ERROR(
        backend_.CopyFromHost(*stream_, HostBytes(absl::MakeConstSpan(previous_host_)), index));
    RF_RETURN_IF_ERROR(
        backend_.GatherRows(*stream_, {run.last_hidden.view(), index, window_.view().Rows(0, 1)}));
    RF_RETURN_IF_ERROR(backend_.Synchronize(*stream_));  // the index goes on to other rows
  }
  previous_host_.resize(bulk);
  for (int64_t i = 0; i < bulk; ++i) {
    const bool outlier = i == 0 ? run.last_is_outlier : outlier_[i - 1];
    // Row p stands at place p - done + 1 of the window.
    previous_host_[i] = static_cast<int32_t>(ridge::PreviousRow(positions_[i], outlier) - run.done + 1);
  }
  const kernels::TensorView index = index_.view().Rows(0, bulk);
  RF_RETURN_IF_ERROR(backend_.CopyFromHost(*stream_, HostBytes(absl::MakeConstSpan(previous_host_)), index));
  return backend_.GatherRows(*stream_,
                             {window_.view().Rows(0, bulk + 1), index, previous_.view().Rows(0, bulk)});
}

// All of the chunk is bulk, so that the next chunk may have bulk too.
absl::Status PrefillPass::KeepLast(PrefillRun& run, int64_t count) {
  if (!fill_->needs_previous()) return absl::OkStatus();
  if (run.done == 0) {
    RF_ASSIGN_OR_RETURN(run.last_hidden,
                        backend_.Allocate(kernels::DType::kF32, {1, model_.config().hidden}));
  }
  run.last_is_outlier = outlier_.back();
  previous_host_.assign(1, static_cast<int32_t>(count - 1));
  const kernels::TensorView index = index_.view().Rows(0, 1);
  RF_RETURN_IF_ERROR(backend_.CopyFromHost(*stream_, HostBytes(absl::MakeConstSpan(previous_host_)), index));
  return backend_.GatherRows(*stream_, {Hidden(count), index, run.last_hidden.view()});
}

// The first `count` rows of the chunk.
absl::StatusOr<std::unique_ptr<kernels::Batch>> PrefillPass::NewBatch(const PrefillRun& run,
                                                                      int64_t count) const {
  const kernels::SequenceRows rows{0, count, run.blocks.blocks};
  kernels::BatchSpec spec;
  spec.positions = absl::MakeConstSpan(positions_).subspan(0, count);
  spec.sequences = absl::MakeConstSpan(&rows, 1);
  return backend_.NewBatch(spec, &model_.rope());
}

}  // namespace ridgefill::runtime
