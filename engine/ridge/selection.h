// Which bulk rows QUALITY runs exactly beside outliers and tail (docs/method.md, "Modes"): a pure function of
// scores, so that evaluation and engine choose the same rows.
//
// First whole windows are chosen around rows that draw attention: what has to be copied exactly stands next
// to the row that draws it, and mostly behind, as a value behind its key. What is half exact and half filled
// is copied worse than what is filled; the same goes for one of several alike facts. Then, by attention,
// single rows that draw less than a window is worth: there a row by its own attention takes more off the loss
// than the neighbours of one.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/ridge/fill_plan.h"

namespace ridgefill::ridge {

// What the attention selector looks at: the last rows of the prompt in the layers just below the split.
inline constexpr int kScoringRows = 32;
inline constexpr int kScoringLayers = 4;
// The probe: the last rows of the prompt, those of the tail at most, in all late layers.
inline constexpr int kProbeRows = 64;

// Of the row that draws attention: so many before it, itself and the rest behind.
inline constexpr int kSelectionWindow = 24, kWindowBefore = 7;
// A window is worth its rows when its row draws at least this much of the scoring rows' attention, on average
// over those rows and the heads of the layer and group where it draws most. SmolLM2 at S = 18: of four alike
// facts in 1K tokens, one of them asked for, the least draws 0.0045 to 0.02; of 3.3K rows of plain prose 1 to
// 6 % are in windows that draw as much.
inline constexpr float kLeastAttention = 0.004f;
// Single rows: at most this share of the bulk, and never more than so many (from 3,840 rows of bulk on), so
// that like the tail they do not grow with the prompt. What they bring: docs/quality.md.
inline constexpr float kSingleShare = 0.05f;
inline constexpr int kMostSingles = 192;
// The same of a probe, whose scores are maxima: leaves out what no head looks at (docs/method.md, "Modes").
inline constexpr float kLeastProbe = 0.05f;

struct SelectionOptions {
  float share = 0.25f;  // at most this share of the bulk's rows
  int window = kSelectionWindow, before = kWindowBefore;
  float least = 0.0f;  // score that a window needs; any above 0 will do
};

// Rows of windows in [0, bulk_end), ascending: around each row that reaches the least score and is in no
// window yet, as many as fit the share, the highest scores first, the lower one of equals. `scores` [>=
// bulk_end]; `outliers` ascending: they are exact anyway, so their scores count for nothing and their rows
// cost nothing.
std::vector<int32_t> SelectWindows(absl::Span<const float> scores, int64_t bulk_end,
                                   absl::Span<const int32_t> outliers, const SelectionOptions& options);

// Rows of [0, bulk_end), ascending, that are not in `taken` (ascending): those that score highest, the lower
// one of equals, `count` at most; a score of 0 wins nothing.
std::vector<int32_t> SelectSingles(absl::Span<const float> scores, int64_t bulk_end,
                                   absl::Span<const int32_t> taken, int64_t count);

// Selectors to compare with. A row that is random, the same for every call with one seed; and one that is the
// higher the fewer of its window's tokens the prompt holds elsewhere.
std::vector<float> RandomScores(int64_t rows, uint64_t seed);
std::vector<float> RarityScores(absl::Span<const int32_t> tokens, const SelectionOptions& options);

// The rows that a decision selects in a prompt; none unless its mode is QUALITY. `attention` [tokens]: what
// its selector looks at, in the lower layers or in a probe; may be empty for selectors that do not.
std::vector<int32_t> SelectRows(const FillDecision& decision, absl::Span<const int32_t> tokens,
                                absl::Span<const float> attention, absl::Span<const int32_t> outliers);
// The most rows of a bulk that a decision may select.
int64_t MostSelected(const FillDecision& decision, int64_t bulk_rows);
// Whether that is a window: without room for one nothing is selected, and nothing need be scored.
bool HasRoomForAWindow(const FillDecision& decision, int64_t bulk_rows);
// What the selector looks at; nothing with a share of 0.
bool NeedsAttentionScores(const FillDecision& decision);  // of the lower layers
bool NeedsProbe(const FillDecision& decision);
// First of the rows that a probe runs.
int64_t ProbeBegin(const FillDecision& decision, int64_t tokens);

}  // namespace ridgefill::ridge
