#include "engine/ridge/fill_plan.h"

#include <algorithm>
#include <iterator>

#include "engine/base/check.h"

namespace ridgefill::ridge {
namespace {

// Sorted, without duplicates, only rows of [0, end).
std::vector<int32_t> RowsBelow(absl::Span<const int32_t> rows, int64_t end) {
  std::vector<int32_t> out;
  out.reserve(rows.size());
  for (int32_t row : rows) {
    RF_CHECK(row >= 0);
    if (row < end) out.push_back(row);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace

absl::string_view Name(Mode mode) {
  switch (mode) {
    case Mode::kAuto:
      return "AUTO";
    case Mode::kExact:
      return "EXACT";
    case Mode::kSpeed:
      return "SPEED";
    case Mode::kQuality:
      return "QUALITY";
  }
  RF_CHECK(false);
}

absl::string_view Name(WireForm form) { return form == WireForm::kHidden ? "hidden" : "kv"; }

absl::string_view Name(Selector selector) {
  switch (selector) {
    case Selector::kAttention:
      return "attention";
    case Selector::kProbe:
      return "probe";
    case Selector::kRandom:
      return "random";
    case Selector::kRarity:
      return "rarity";
    case Selector::kNone:
      return "none";
  }
  RF_CHECK(false);
}

int64_t FillPlan::exact_count() const {
  return tokens - tail_begin + static_cast<int64_t>(outliers.size() + selected.size());
}

std::vector<int32_t> FillPlan::ExactRows() const {
  std::vector<int32_t> rows;
  rows.reserve(exact_count());
  std::merge(outliers.begin(), outliers.end(), selected.begin(), selected.end(), std::back_inserter(rows));
  for (int64_t row = tail_begin; row < tokens; ++row) rows.push_back(static_cast<int32_t>(row));
  return rows;
}

int64_t TailBegin(const FillDecision& decision, int64_t tokens) {
  RF_CHECK(decision.mode != Mode::kAuto);
  if (decision.mode == Mode::kExact) return 0;
  // The last row is always exact: its logits give the first token.
  return std::max<int64_t>(0, tokens - std::max(decision.tail, 1));
}

bool IsOutlier(int64_t position, float norm, float threshold) {
  if (position == 0) return true;
  // Written so that a NaN is an outlier. A set without a threshold (published ones) knows row 0 only.
  return threshold > 0 && !(norm <= threshold);
}

FillPlan MakeFillPlan(const FillDecision& decision, int64_t tokens, absl::Span<const int32_t> outliers,
                      absl::Span<const int32_t> selected) {
  FillPlan plan;
  plan.tokens = tokens;
  plan.tail_begin = TailBegin(decision, tokens);
  plan.outliers = RowsBelow(outliers, plan.tail_begin);
  if (plan.tail_begin > 0 && (plan.outliers.empty() || plan.outliers.front() != 0)) {
    plan.outliers.insert(plan.outliers.begin(), 0);
  }
  const std::vector<int32_t> wanted = RowsBelow(selected, plan.tail_begin);
  std::set_difference(wanted.begin(), wanted.end(), plan.outliers.begin(), plan.outliers.end(),
                      std::back_inserter(plan.selected));
  return plan;
}

}  // namespace ridgefill::ridge
