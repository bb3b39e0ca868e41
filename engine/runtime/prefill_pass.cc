#include "engine/runtime/prefill_pass.h"

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/ridge/selection.h"
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
                                                                 ridge::MapSets maps,
                                                                 const Options& options) {
  std::unique_ptr<PrefillPass> pass(new PrefillPass(model, options));
  RF_RETURN_IF_ERROR(pass->Allocate(maps));
  return pass;
}

PrefillPass::PrefillPass(const model::Model& model, const Options& options)
    : model_(model), options_(options), backend_(model.backend()), stream_(backend_.NewStream()) {}

absl::Status PrefillPass::Allocate(ridge::MapSets maps) {
  const model::ModelConfig& config = model_.config();
  const int64_t rows = options_.chunk_tokens;
  kernels::KvCacheSpec spec{config.layers, options_.cache_blocks, config.heads_kv, config.head_dim};
  RF_ASSIGN_OR_RETURN(cache_, backend_.NewKvCache(spec));
  RF_ASSIGN_OR_RETURN(workspace_, model_.NewWorkspace(rows));
  RF_ASSIGN_OR_RETURN(fills_, CreateFillPasses(model_, maps, rows));
  RF_ASSIGN_OR_RETURN(ids_, backend_.Allocate(kernels::DType::kI32, {rows}));
  RF_ASSIGN_OR_RETURN(window_, backend_.Allocate(kernels::DType::kF32, {1 + rows, config.hidden}));
  if (AnyNeedsPrevious(fills_)) {
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
  const bool lower = !run.lower_done();
  int64_t& done = lower ? run.done : run.filled;
  const int64_t count = std::min(options_.chunk_tokens, (lower ? run.tokens() : run.work.tail_begin) - done);
  RF_CHECK(count > 0);
  positions_.resize(count);
  std::iota(positions_.begin(), positions_.end(), static_cast<int32_t>(done));
  absl::Status status = lower ? Chunk(run, count) : FillChunk(run, count);
  // Whatever was enqueued still reads host memory: nothing of it may be freed before the device is through.
  status.Update(backend_.Synchronize(*stream_));
  if (status.ok()) done += count;
  return status;
}

absl::Status PrefillPass::Chunk(PrefillRun& run, int64_t count) {
  if (run.done == 0) RF_RETURN_IF_ERROR(Begin(run));
  const kernels::TensorView hidden = Hidden(run, run.done, count);
  RF_ASSIGN_OR_RETURN(batch_, NewBatch(run, count));
  RF_RETURN_IF_ERROR(LowerLayers(run, hidden));
  const int layers = model_.config().layers;
  const bool last = run.done + count == run.tokens();
  if (run.work.late_begin == layers) {
    if (last) {
      RF_RETURN_IF_ERROR(
          run.frames->AddHidden(layers, {static_cast<int32_t>(run.tokens() - 1)}, hidden.Rows(count - 1, 1)));
    }
  } else {
    RF_RETURN_IF_ERROR(LateRows(run, hidden));
  }
  if (last) RF_RETURN_IF_ERROR(UseScores(run));
  return run.frames->Flush();
}

// What the late layers of the chunk's rows need here and at the decode worker.
absl::Status PrefillPass::LateRows(PrefillRun& run, const kernels::TensorView& hidden) {
  if (FillsOnDecode(run.call->decision)) {
    return run.frames->AddHidden(run.work.late_begin, positions_, hidden);
  }
  const int64_t bulk = std::clamp<int64_t>(run.work.tail_begin - run.done, 0, hidden.dim(0));
  RF_RETURN_IF_ERROR(SendExactRows(run, hidden, bulk));
  return bulk > 0 && !run.fills_last() ? FillBulk(run, run.done, bulk) : absl::OkStatus();
}

absl::Status PrefillPass::Begin(PrefillRun& run) {
  if (run.fills_last()) {
    RF_ASSIGN_OR_RETURN(run.hidden,
                        backend_.Allocate(kernels::DType::kF32, {run.tokens(), model_.config().hidden}));
  }
  if (!run.wants_scores()) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(run.scores,
                      SelectionScores::Create(model_, run.work.late_begin, run.tokens(), *stream_));
  return absl::OkStatus();
}

absl::Status PrefillPass::LowerLayers(PrefillRun& run, const kernels::TensorView& hidden) {
  const int64_t count = hidden.dim(0);
  const absl::Span<const int32_t> tokens = absl::MakeConstSpan(run.call->tokens).subspan(run.done, count);
  const kernels::TensorView ids = ids_.view().Rows(0, count);
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
  if (run.scores != nullptr) {
    args.on_query = [&](int layer, const kernels::TensorView& q) {
      return run.scores->Add(*stream_, layer, q, {cache_.get(), run.blocks.blocks, run.done});
    };
  }
  return model_.Forward(*stream_, args);
}

// Outliers among the first `bulk` rows of the chunk, and all rows behind them: the tail.
absl::Status PrefillPass::SendExactRows(PrefillRun& run, const kernels::TensorView& hidden, int64_t bulk) {
  std::vector<int32_t> exact;
  if (bulk > 0) {
    RF_ASSIGN_OR_RETURN(const std::vector<float> norms,
                        RowNorms(backend_, *stream_, hidden.Rows(0, bulk), norms_));
    const double threshold = Fill(run).manifest().outlier_threshold;
    for (int64_t i = 0; i < bulk; ++i) {
      if (!ridge::IsOutlier(positions_[i], norms[i], threshold)) continue;
      exact.push_back(positions_[i]);
    }
  }
  run.outliers.insert(run.outliers.end(), exact.begin(), exact.end());
  exact.insert(exact.end(), positions_.begin() + bulk, positions_.end());
  return SendRows(run, hidden, exact);
}

// Some rows of the chunk in flight, whose h_S is `hidden`.
absl::Status PrefillPass::SendRows(PrefillRun& run, const kernels::TensorView& hidden,
                                   const std::vector<int32_t>& positions) {
  if (positions.empty()) return absl::OkStatus();
  index_host_.clear();
  for (const int32_t position : positions) index_host_.push_back(position - positions_.front());
  const int64_t rows = static_cast<int64_t>(positions.size());
  const kernels::TensorView index = index_.view().Rows(0, rows), gathered = exact_.view().Rows(0, rows);
  RF_RETURN_IF_ERROR(backend_.CopyFromHost(*stream_, HostBytes(absl::MakeConstSpan(index_host_)), index));
  RF_RETURN_IF_ERROR(backend_.GatherRows(*stream_, {hidden, index, gathered}));
  return run.frames->AddHidden(run.work.late_begin, positions, gathered);
}

// The lower layers are done: the rows are selected here, or where they are filled.
absl::Status PrefillPass::UseScores(PrefillRun& run) {
  std::vector<float> scores;
  if (run.scores != nullptr) {
    RF_ASSIGN_OR_RETURN(scores, run.scores->Read(*stream_));
    run.scores = nullptr;
  }
  if (run.fills_last()) {
    run.selected = ridge::SelectRows(run.call->decision, run.call->tokens, scores, run.outliers);
  } else if (!scores.empty()) {
    run.frames->AddScores(scores);
  }
  return absl::OkStatus();
}

// The next bulk rows of a prompt that fills last, and h_S of those among them that were selected.
absl::Status PrefillPass::FillChunk(PrefillRun& run, int64_t count) {
  const kernels::TensorView hidden = run.hidden.view().Rows(run.filled, count);
  const auto first = std::lower_bound(run.selected.begin(), run.selected.end(), run.filled),
             last = std::lower_bound(first, run.selected.end(), run.filled + count);
  RF_RETURN_IF_ERROR(SendRows(run, hidden, {first, last}));
  RF_RETURN_IF_ERROR(FillBulk(run, run.filled, count));
  return run.frames->Flush();
}

// h_S of the prompt's rows: all of them where they are kept, else those of the chunk in flight.
kernels::TensorView PrefillPass::Hidden(const PrefillRun& run, int64_t begin, int64_t rows) const {
  return run.hidden ? run.hidden.view().Rows(begin, rows) : window_.view().Rows(1 + begin - run.done, rows);
}

// Exact ones too: frames stay contiguous, and the late pass overwrites what it computes.
absl::Status PrefillPass::FillBulk(PrefillRun& run, int64_t begin, int64_t rows) {
  run.frames->BeginKv({run.blocks.blocks, begin, rows, run.work.late_begin, model_.config().layers});
  FillPass& fill = Fill(run);
  FillPass::Args args;
  args.rows.hidden = Hidden(run, begin, rows);
  if (fill.needs_previous()) {
    RF_ASSIGN_OR_RETURN(args.rows.previous, PreviousRows(run, begin, rows));
  }
  args.positions = absl::MakeConstSpan(positions_).subspan(0, rows);
  args.block_table = run.blocks.blocks;
  args.cache = cache_.get();
  args.workspace = workspace_.get();
  args.after_layer = [&run](int layer) { return SendLayer(run, layer); };
  RF_RETURN_IF_ERROR(fill.Run(*stream_, args));
  if (!fill.needs_previous() || run.hidden) return absl::OkStatus();
  if (!run.last_hidden) {
    RF_ASSIGN_OR_RETURN(run.last_hidden,
                        backend_.Allocate(kernels::DType::kF32, {1, model_.config().hidden}));
  }
  return CopyRow(Hidden(run, begin + rows - 1, 1), run.last_hidden.view());
}

absl::StatusOr<kernels::TensorView> PrefillPass::PreviousRows(const PrefillRun& run, int64_t begin,
                                                              int64_t rows) {
  const bool from_window = !run.hidden;
  if (from_window && begin > 0) {
    RF_RETURN_IF_ERROR(CopyRow(run.last_hidden.view(), window_.view().Rows(0, 1)));
  }
  // The window begins one row before the chunk.
  const kernels::TensorView source = from_window ? window_.view() : run.hidden.view();
  previous_host_.clear();
  for (int64_t row = begin; row < begin + rows; ++row) {
    const bool after_outlier = std::binary_search(run.outliers.begin(), run.outliers.end(), row - 1);
    const int64_t previous = ridge::PreviousRow(row, after_outlier);
    previous_host_.push_back(static_cast<int32_t>(from_window ? previous - begin + 1 : previous));
  }
  const kernels::TensorView index = index_.view().Rows(0, rows), out = previous_.view().Rows(0, rows);
  RF_RETURN_IF_ERROR(backend_.CopyFromHost(*stream_, HostBytes(absl::MakeConstSpan(previous_host_)), index));
  RF_RETURN_IF_ERROR(backend_.GatherRows(*stream_, {source, index, out}));
  return out;
}

// One row; waits, since the index goes on to other rows. Its host bytes are its own: those of a chunk's index
// may not have been read yet.
absl::Status PrefillPass::CopyRow(const kernels::TensorView& from, const kernels::TensorView& to) {
  static constexpr int32_t kFirst[] = {0};
  const kernels::TensorView index = index_.view().Rows(0, 1);
  RF_RETURN_IF_ERROR(backend_.CopyFromHost(*stream_, HostBytes(absl::MakeConstSpan(kFirst)), index));
  RF_RETURN_IF_ERROR(backend_.GatherRows(*stream_, {from, index, to}));
  return backend_.Synchronize(*stream_);
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
