// Which rows of a prompt run exactly above the split: a pure function of lengths, row norms and scores.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ridgefill::ridge {

enum class Mode : uint8_t { kAuto, kExact, kSpeed, kQuality };
absl::string_view Name(Mode mode);  // "AUTO", "EXACT", "SPEED", "QUALITY"

// Where the rows of the exact set run their late layers.
enum class LatePassAt : uint8_t { kDecode, kPrefill };

// What the prefill worker sends: filled late K and V, or h_S of every row for the decode worker to fill.
enum class WireForm : uint8_t { kKv, kHidden };
absl::string_view Name(WireForm form);  // "kv", "hidden"

// How QUALITY chooses the bulk rows that run exactly: by attention in the lower layers, or in the late ones
// over the filled cache; the last three are there to compare with.
enum class Selector : uint8_t { kAttention, kProbe, kRandom, kRarity, kNone };
absl::string_view Name(Selector selector);  // "attention", "probe", "random", "rarity", "none"

// What the router decided for one request; travels with it. Never kAuto.
struct FillDecision {
  Mode mode = Mode::kExact;
  int split = 0;       // S: layers [0, S) run for all rows. 0 in kExact without maps.
  int tail = 0;        // T: last rows that run exactly
  float share = 0.0f;  // share of the bulk that QUALITY may select
  Selector selector = Selector::kAttention;
  LatePassAt late_pass = LatePassAt::kDecode;
  WireForm wire_form = WireForm::kKv;
  bool local = false;  // decode prefills by itself, no prefill worker involved
  std::string reason;  // REQUESTED, SHORT_PROMPT, NO_MAPS, LONG_PROMPT, LOCAL, ...
};

// The exact set E of one prompt. Bulk rows are all others.
struct FillPlan {
  int64_t tokens = 0;             // N
  int64_t tail_begin = 0;         // rows [tail_begin, N) are the tail; 0 means that every row is exact
  std::vector<int32_t> outliers;  // ascending rows below tail_begin
  std::vector<int32_t> selected;  // ascending rows below tail_begin, disjoint from outliers

  int64_t exact_count() const;
  int64_t filled_count() const { return tokens - exact_count(); }
  // E in prompt order; always contains N - 1.
  std::vector<int32_t> ExactRows() const;
};

// First row of the tail under a decision; 0 for EXACT and for prompts not longer than the tail.
int64_t TailBegin(const FillDecision& decision, int64_t tokens);

// True when a row is too far from what the maps were fitted on: ||h_S|| above the threshold, or row 0.
bool IsOutlier(int64_t position, float norm, float threshold);

// The row whose h_S is the second input of maps that take one: the row before. An outlier is no input to any
// map, nor is there a row before the first: the row's own h_S takes its place.
inline int64_t PreviousRow(int64_t row, bool previous_is_outlier) {
  return row == 0 || previous_is_outlier ? row : row - 1;
}

// Builds the plan from rows found below the tail (any order, duplicates allowed).
FillPlan MakeFillPlan(const FillDecision& decision, int64_t tokens, absl::Span<const int32_t> outliers,
                      absl::Span<const int32_t> selected);

}  // namespace ridgefill::ridge
