// One document through the model with its late layers exact for the rows of a plan and filled for all others:
// the steps of docs/method.md, "What happens to a prompt", without services, queues and frames.
//
// Call Lower once per document, then Late for each plan and fill to compare, then read. Of several splits one
// Lower and one exact run serve all; as a fill overwrites the layers from its split on, splits are run from
// the highest down. Not thread-safe; the model and the fills must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/eval/scorer.h"
#include "engine/model/model.h"
#include "engine/ridge/fill_plan.h"
#include "engine/runtime/fill_pass.h"
#include "engine/runtime/selection_scores.h"
#include "engine/runtime/sequence_pass.h"

namespace ridgefill::eval {

class FilledForward {
 public:
  // Documents of up to max_tokens, in passes of up to chunk_rows rows. `splits` ascend.
  static absl::StatusOr<std::unique_ptr<FilledForward>> Create(const model::Model& model,
                                                               absl::Span<const int> splits,
                                                               int64_t max_tokens, int64_t chunk_rows);
  static absl::StatusOr<std::unique_ptr<FilledForward>> Create(const model::Model& model, int split,
                                                               int64_t max_tokens, int64_t chunk_rows) {
    return Create(model, absl::MakeConstSpan(&split, 1), max_tokens, chunk_rows);
  }

  // Layers below the highest split for all rows; keeps h_S of each split. With `prompt_tokens` also what the
  // last rows of the first prompt_tokens attend to.
  absl::Status Lower(absl::Span<const int32_t> ids, int64_t prompt_tokens = 0);
  // Below, split 0 is the highest one.
  // ||h_S|| of the document's rows.
  const std::vector<float>& norms(int split = 0) const { return At(split).norms; }
  // As runtime::SelectionScores gives them, [prompt_tokens], for ridge::SelectRows; empty without.
  const std::vector<float>& scores(int split = 0) const { return At(split).scores; }

  // What a probe sees, as runtime::SelectionScores gives it, [plan.tokens]: rows [plan.tail_begin,
  // plan.tokens) and the plan's outliers run the late layers with all other rows before them filled. A
  // prompt's plan: it may be shorter than the document. Before Late, which overwrites all that this leaves.
  absl::StatusOr<std::vector<float>> Probe(const ridge::FillPlan& plan, runtime::FillPass& fill,
                                           int split = 0);

  // Layers [split, L): the plan's rows exactly, the others by `fill` (made for the same split; may be null
  // when the plan fills nothing). plan.tokens is the document's length. No lower split was filled since
  // Lower.
  absl::Status Late(const ridge::FillPlan& plan, runtime::FillPass* fill, int split = 0);
  // The highest split's, with the bulk's late K and V as they stand in the cache (WriteKv).
  absl::Status LateOverCache(const ridge::FillPlan& plan);

  // Canonical bytes (kernels::KvSpan) of a layer's K, then V, for the document's rows.
  absl::StatusOr<std::vector<char>> ReadKv(int layer);
  absl::Status WriteKv(int layer, absl::Span<const char> bytes);

  // After Late, rows of its plan's exact set that lie side by side, as they left the last layer: f32 [end -
  // begin, d]. The view holds until the next Late.
  kernels::TensorView Rows(int64_t begin, int64_t end) const;
  // The tokens that follow rows [begin, end): ids[begin + 1], ..., ids[end].
  absl::Span<const int32_t> TokensAfter(int64_t begin, int64_t end) const;
  Scorer& scorer() { return *scorer_; }

  // After Late, for a row of its plan's exact set. f32 [vocab].
  absl::StatusOr<std::vector<float>> Logits(int64_t position);
  // -log p(ids[position + 1]) for positions [begin, end), all of them exact rows of the plan.
  absl::StatusOr<std::vector<double>> NextTokenNll(int64_t begin, int64_t end);

 private:
  // What Lower leaves of a document at one split.
  struct Level {
    int split = 0;
    kernels::Tensor hidden;  // f32 [max_tokens, d]: h_S
    std::vector<float> norms, scores;
  };

  FilledForward(const model::Model& model, int64_t chunk_rows) : model_(model), chunk_rows_(chunk_rows) {}
  const Level& At(int split) const;
  absl::Status LowerChunk(absl::Span<const int32_t> ids, int64_t begin,
                          absl::Span<const std::unique_ptr<runtime::SelectionScores>> scores);
  absl::Status FillBulk(const Level& level, const ridge::FillPlan& plan, runtime::FillPass* fill);
  absl::Status FillRows(const Level& level, absl::Span<const int32_t> rows, runtime::FillPass& fill);
  absl::Status RunExactRows(const Level& level, runtime::SelectionScores* probe = nullptr);
  kernels::KvSpan Span(int layer) const;
  kernels::TensorView Chunk(int64_t rows) const { return chunk_.view().Rows(0, rows); }

  const model::Model& model_;
  const int64_t chunk_rows_;
  std::unique_ptr<runtime::SequencePass> pass_;
  std::unique_ptr<Scorer> scorer_;
  std::vector<Level> levels_;         // by split
  int exact_layers_ = 0;              // so many hold the document's exact K and V
  kernels::Tensor chunk_, previous_;  // f32 [chunk, d]: rows to fill, and those before them
  kernels::Tensor late_;              // f32 [max_tokens, d]: row i left the last layer for exact_rows_[i]
  std::vector<int32_t> ids_, exact_rows_, outliers_;
};

}  // namespace ridgefill::eval
