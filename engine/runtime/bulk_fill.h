// Wire form `hidden`: the decode worker's part of a prompt between its last frame and its late pass. Fills
// late K and V from the h_S that came, finds the outliers on the way, and says which rows are exact; where
// the selector is a probe, by what the prompt's last rows attend to over that very fill.
//
// The probe runs the outliers and its rows as a late pass would, with all rows before it filled. What it
// wrote is overwritten by the late pass: its rows are of the exact set. So the cache is in the end what the
// fill and the late pass give, and the same bytes as in wire form `kv`.
//
// Goes in pieces that share steps with running decodes. Not thread-safe: one prompt's own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/ridge/fill_plan.h"
#include "engine/runtime/decode_pass.h"
#include "engine/runtime/hidden_rows.h"
#include "engine/runtime/selection_scores.h"

namespace ridgefill::runtime {

// A row to fill costs a fraction of one that runs the late layers (docs/method.md, section 5): so many make a
// piece no longer than a late pass's.
inline constexpr int64_t kFilledRowsPerRow = 4;

class BulkFill {
 public:
  // All borrowed; nothing of it may change until the plan is made.
  struct Prompt {
    const ridge::FillDecision* decision = nullptr;
    absl::Span<const int32_t> tokens;
    absl::Span<const int32_t> blocks;
    const HiddenRows* hidden = nullptr;  // every row
    absl::Span<const float> scores;      // of the lower layers, where the decision asks for them
  };
  // For a prompt that has bulk rows.
  explicit BulkFill(const Prompt& prompt);

  // What is left, in rows of a late pass; 0: the plan is there.
  int64_t left() const;
  // The next piece, of at most `rows` such rows.
  absl::Status Step(DecodePass& pass, int64_t rows);
  const ridge::FillPlan& plan() const { return plan_; }

  int64_t filled_rows() const { return filled_; }
  int64_t probed_rows() const { return probed_; }

 private:
  absl::Status FillRows(DecodePass& pass, int64_t count);
  absl::Status ProbeRows(DecodePass& pass, int64_t rows);
  absl::Status MakePlan(DecodePass& pass);
  int64_t tokens() const { return static_cast<int64_t>(prompt_.tokens.size()); }

  const Prompt prompt_;
  const bool probes_;
  const int64_t fill_end_;         // rows [0, fill_end_) are filled
  int64_t filled_ = 0;             // of them
  std::vector<int32_t> outliers_;  // among the filled ones, ascending
  int64_t probed_ = 0;             // of the outliers, then of rows [fill_end_, tokens)
  std::unique_ptr<SelectionScores> probe_;
  bool planned_ = false;
  ridge::FillPlan plan_;
};

}  // namespace ridgefill::runtime
