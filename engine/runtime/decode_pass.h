// The device side of the decode engine: the KV cache, one decode batch, one piece of a prompt or of its fill.
// Owns all buffers; results come back as host memory that holds until the next call.
//
// Not thread-safe: owned by the decode engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/model/model.h"
#include "engine/ridge/device_maps.h"
#include "engine/runtime/fill_pass.h"
#include "engine/runtime/hidden_rows.h"
#include "engine/runtime/kv_frame.h"
#include "engine/runtime/selection_scores.h"

namespace ridgefill::runtime {

// One sequence's newest token, to be run at its position.
struct DecodeRow {
  int32_t token = 0;
  int32_t position = 0;
  absl::Span<const int32_t> blocks;
};

// Rows of one prompt that run layers [layer_begin, L): residual rows that arrived, or token ids from layer 0.
struct PieceRows {
  absl::Span<const int32_t> positions;  // ascending
  absl::Span<const int32_t> blocks;
  int layer_begin = 0;
  absl::Span<const int32_t> tokens;    // [positions], layer_begin == 0
  const HiddenRows* hidden = nullptr;  // layer_begin > 0: holds the rows
  // A probe's: gets what the rows attend to; positions are consecutive then. Else null.
  SelectionScores* scores = nullptr;
};

// Consecutive rows of one prompt whose late K and V come from the maps of `split`.
struct FilledRows {
  int split = 0;
  const HiddenRows* hidden = nullptr;  // holds the rows and the one before them
  int64_t begin = 0, count = 0;
  absl::Span<const int32_t> blocks;
};

class DecodePass {
 public:
  struct Options {
    int64_t cache_blocks = 0;
    int64_t decode_rows = 32;
    int64_t piece_rows = 256;
  };
  static absl::StatusOr<std::unique_ptr<DecodePass>> Create(const model::Model& model, ridge::MapSets maps,
                                                            const Options& options);

  const kernels::KvCache& cache() const { return *cache_; }

  // Puts a frame's bytes into the blocks; the payload must live until Synchronize.
  absl::Status WriteKv(const KvBody& kv, absl::string_view payload, absl::Span<const int32_t> blocks);
  absl::Status Synchronize() { return backend_.Synchronize(*stream_); }

  // Logits of every row, [rows, vocab].
  absl::StatusOr<absl::Span<float>> Decode(absl::Span<const DecodeRow> rows);
  // Runs a piece; its residual rows stay for PieceLogits.
  absl::Status RunPiece(const PieceRows& piece);
  // Logits of rows [begin, begin + count) of the last piece, [count, vocab]; count <= max_logit_rows().
  absl::StatusOr<absl::Span<float>> PieceLogits(int64_t begin, int64_t count);
  int64_t max_logit_rows() const { return logits_.view().dim(0); }
  int64_t max_piece_rows() const { return hidden_.view().dim(0); }

  // With maps of that split only. At most max_piece_rows() rows, prompt order: `outliers` holds those among
  // the rows before, and gets those among these. Outliers are filled like the others, and overwritten by the
  // late pass.
  absl::Status Fill(const FilledRows& rows, std::vector<int32_t>& outliers);
  absl::StatusOr<std::unique_ptr<SelectionScores>> NewProbe(int split, int64_t probe_begin, int64_t tokens);
  absl::StatusOr<std::vector<float>> ReadScores(const SelectionScores& scores) {
    return scores.Read(*stream_);
  }

 private:
  explicit DecodePass(const model::Model& model)
      : model_(model), backend_(model.backend()), stream_(backend_.NewStream()) {}
  absl::Status Allocate(ridge::MapSets maps, const Options& options);
  absl::StatusOr<absl::Span<float>> DecodeRows(absl::Span<const DecodeRow> rows);
  absl::Status PieceLayers(const PieceRows& piece);
  absl::Status FillLayers(const FilledRows& rows, std::vector<int32_t>& outliers);
  absl::Status EmbedRows(absl::Span<const int32_t> tokens, const kernels::TensorView& hidden);
  absl::StatusOr<absl::Span<float>> Logits(kernels::Phase phase, const kernels::TensorView& hidden);

  const model::Model& model_;
  kernels::Backend& backend_;
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<kernels::KvCache> cache_;
  std::unique_ptr<model::Workspace> workspace_;
  kernels::Tensor ids_;     // i32 [rows]
  kernels::Tensor hidden_;  // f32 [rows, d]
  kernels::Tensor logits_;  // f32 [logit rows, vocab]
  // With maps only.
  FillPasses fills_;
  kernels::Tensor previous_;  // f32 [rows, d]: second input of the maps
  kernels::Tensor norms_;     // f32 [rows]
  std::vector<float> host_logits_;
  // Host side of the pass in flight: the device may read it until the stream is synchronised.
  std::vector<int32_t> tokens_, positions_;
  std::vector<kernels::SequenceRows> sequences_;
  std::unique_ptr<kernels::Batch> batch_;
};

}  // namespace ridgefill::runtime
