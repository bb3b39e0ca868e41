// The device side of the prefill engine: one chunk of one prompt at a time through the lower layers, the
// ridge fill of its bulk rows, and its frames. Owns the worker's KV cache and all buffers of a chunk.
//
// Not thread-safe: owned by the prefill engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cache/block_pool.h"
#include "engine/model/model.h"
#include "engine/ridge/device_maps.h"
#include "engine/ridge/selection.h"
#include "engine/runtime/decision.h"
#include "engine/runtime/fill_pass.h"
#include "engine/runtime/frame_writer.h"
#include "engine/runtime/kv_frame.h"
#include "engine/runtime/kv_stream.h"
#include "engine/runtime/selection_scores.h"

namespace ridgefill::runtime {

// One prompt on its way. `call` and `sink` are borrowed.
struct PrefillRun {
  const PrefillCall* call = nullptr;
  KvSink* sink = nullptr;
  WorkSplit work;
  cache::BlockTable blocks;  // holds the whole prompt
  std::unique_ptr<FrameWriter> frames;
  int64_t done = 0;               // rows [0, done) went through
  std::vector<int32_t> outliers;  // ascending, of rows [0, done) below the tail
  kernels::Tensor last_hidden;    // f32 [1, d]: row done - 1, for maps that take the row before

  // QUALITY: which bulk rows are exact shows when the last row went through, so all h_S stay until then and
  // the fill follows. In wire form `hidden` they have all gone to the decode worker, with the scores.
  kernels::Tensor hidden;                   // f32 [tokens, d]
  std::unique_ptr<SelectionScores> scores;  // null for selectors that need none
  std::vector<int32_t> selected;            // ascending, once done == tokens()
  int64_t filled = 0;                       // bulk rows [0, filled) are

  int64_t tokens() const { return static_cast<int64_t>(call->tokens.size()); }
  bool fills() const { return work.tail_begin > 0 && !FillsOnDecode(call->decision); }
  bool fills_last() const { return call->decision.mode == ridge::Mode::kQuality && fills(); }
  bool wants_scores() const { return work.tail_begin > 0 && ridge::NeedsAttentionScores(call->decision); }
  bool lower_done() const { return done == tokens(); }
  bool finished() const { return lower_done() && (!fills_last() || filled == work.tail_begin); }
};

class PrefillPass {
 public:
  struct Options {
    int64_t chunk_tokens = 512;
    int64_t cache_blocks = 0;
    int64_t frame_bytes = 1 << 20;
  };
  // Fills prompts whose split is one of the maps'.
  static absl::StatusOr<std::unique_ptr<PrefillPass>> Create(const model::Model& model, ridge::MapSets maps,
                                                             const Options& options);

  std::unique_ptr<FrameWriter> NewFrameWriter(KvSink& sink) const;
  // Runs the next chunk, or fills the next one of a prompt that fills last, and sends its frames. CANCELLED
  // as soon as the sink is, between layers.
  absl::Status RunChunk(PrefillRun& run);

 private:
  PrefillPass(const model::Model& model, const Options& options);
  absl::Status Allocate(ridge::MapSets maps);
  absl::Status Chunk(PrefillRun& run, int64_t count);
  absl::Status FillChunk(PrefillRun& run, int64_t count);
  absl::Status Begin(PrefillRun& run);
  absl::Status LowerLayers(PrefillRun& run, const kernels::TensorView& hidden);
  absl::Status LateRows(PrefillRun& run, const kernels::TensorView& hidden);
  absl::Status SendExactRows(PrefillRun& run, const kernels::TensorView& hidden, int64_t bulk);
  absl::Status SendRows(PrefillRun& run, const kernels::TensorView& hidden,
                        const std::vector<int32_t>& positions);
  absl::Status UseScores(PrefillRun& run);
  absl::Status FillBulk(PrefillRun& run, int64_t begin, int64_t rows);
  absl::StatusOr<kernels::TensorView> PreviousRows(const PrefillRun& run, int64_t begin, int64_t rows);
  absl::Status CopyRow(const kernels::TensorView& from, const kernels::TensorView& to);
  kernels::TensorView Hidden(const PrefillRun& run, int64_t begin, int64_t rows) const;
  absl::StatusOr<std::unique_ptr<kernels::Batch>> NewBatch(const PrefillRun& run, int64_t count) const;
  // Of a prompt that is filled here.
  FillPass& Fill(const PrefillRun& run) const { return OfSplit(fills_, run.call->decision.split); }

  const model::Model& model_;
  const Options options_;
  kernels::Backend& backend_;
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<kernels::KvCache> cache_;
  std::unique_ptr<model::Workspace> workspace_;
  FillPasses fills_;
  kernels::Tensor ids_;       // i32 [chunk]
  kernels::Tensor window_;    // f32 [1 + chunk, d]: the row before the chunk, then the chunk's
  kernels::Tensor previous_;  // f32 [chunk, d]: second input of the bulk rows' maps
  kernels::Tensor norms_;     // f32 [chunk]
  kernels::Tensor index_;     // i32 [chunk]
  kernels::Tensor exact_;     // f32 [chunk, d]: rows of the exact set, gathered
  // Host side of the chunk in flight: the device may read it until the chunk is synchronised.
  std::vector<int32_t> positions_, index_host_, previous_host_;
  std::unique_ptr<kernels::Batch> batch_;
};

}  // namespace ridgefill::runtime
