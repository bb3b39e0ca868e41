#include "engine/ridge/selection.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "engine/base/check.h"
#include "engine/base/rng.h"

namespace ridgefill::ridge {
namespace {

constexpr uint64_t kRandomSeed = 0x5e1ec7;

struct Window {
  int64_t begin = 0, end = 0;  // rows
  int64_t cost = 0;            // of them, not exact yet
  float score = 0;             // of the best of those; above 0
};

bool IsIn(absl::Span<const int32_t> rows, int64_t row) {
  return std::binary_search(rows.begin(), rows.end(), row);
}

std::vector<Window> ScoreWindows(absl::Span<const float> scores, int64_t bulk_end,
                                 absl::Span<const int32_t> outliers, int size) {
  std::vector<Window> windows;
  for (int64_t begin = 0; begin < bulk_end; begin += size) {
    Window window{begin, std::min(begin + size, bulk_end)};
    for (int64_t row = window.begin; row < window.end; ++row) {
      if (IsIn(outliers, row)) continue;
      ++window.cost;
      if (scores[row] > window.score) window.score = scores[row];  // a NaN is not
    }
    windows.push_back(window);
  }
  return windows;
}

// Half a row more, or the rounding of a share like 0.05f would cost a window.
int64_t RowsOfShare(float share, int64_t bulk_rows) {
  return std::llround(double{share} * static_cast<double>(bulk_rows));
}

}  // namespace

std::vector<int32_t> SelectWindows(absl::Span<const float> scores, int64_t bulk_end,
                                   absl::Span<const int32_t> outliers, const SelectionOptions& options) {
  RF_CHECK(options.window > 0 && static_cast<int64_t>(scores.size()) >= bulk_end);
  std::vector<Window> windows = ScoreWindows(scores, bulk_end, outliers, options.window);
  std::stable_sort(windows.begin(), windows.end(),
                   [](const Window& a, const Window& b) { return a.score > b.score; });
  int64_t room = RowsOfShare(options.share, bulk_end);
  std::vector<int32_t> rows;
  for (const Window& window : windows) {
    if (!(window.score > 0) || window.score < options.least || window.cost > room) break;
    room -= window.cost;
    for (int64_t row = window.begin; row < window.end; ++row) {
      if (!IsIn(outliers, row)) rows.push_back(static_cast<int32_t>(row));
    }
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

std::vector<float> RandomScores(int64_t rows, uint64_t seed) {
  base::Rng rng(seed);
  std::vector<float> scores(rows);
  for (float& score : scores) score = static_cast<float>(rng.NextDouble());
  return scores;
}

std::vector<float> RarityScores(absl::Span<const int32_t> tokens, int window) {
  std::unordered_map<int32_t, int> counts;
  for (const int32_t token : tokens) ++counts[token];
  std::vector<float> scores(tokens.size());
  for (size_t begin = 0; begin < tokens.size(); begin += window) {
    const size_t end = std::min(begin + window, tokens.size());
    float sum = 0;
    for (size_t i = begin; i < end; ++i) sum += 1.0f / static_cast<float>(counts[tokens[i]]);
    std::fill(scores.begin() + static_cast<int64_t>(begin), scores.begin() + static_cast<int64_t>(end), sum);
  }
  return scores;
}

std::vector<int32_t> SelectRows(const FillDecision& decision, absl::Span<const int32_t> tokens,
                                absl::Span<const float> attention, absl::Span<const int32_t> outliers) {
  if (decision.mode != Mode::kQuality) return {};
  const int64_t bulk_end = TailBegin(decision, static_cast<int64_t>(tokens.size()));
  SelectionOptions options;
  options.share = decision.share;
  switch (decision.selector) {
    case Selector::kAttention:
      options.least = kLeastAttention;
      return SelectWindows(attention, bulk_end, outliers, options);
    case Selector::kProbe:
      options.least = kLeastProbe;
      return SelectWindows(attention, bulk_end, outliers, options);
    case Selector::kRandom:
      return SelectWindows(RandomScores(bulk_end, kRandomSeed), bulk_end, outliers, options);
    case Selector::kRarity:
      return SelectWindows(RarityScores(tokens, options.window), bulk_end, outliers, options);
    case Selector::kNone:
      return {};
  }
  RF_CHECK(false);
}

int64_t MostSelected(const FillDecision& decision, int64_t bulk_rows) {
  return decision.mode == Mode::kQuality ? RowsOfShare(decision.share, bulk_rows) : 0;
}

bool NeedsAttentionScores(const FillDecision& decision) {
  return decision.mode == Mode::kQuality && decision.selector == Selector::kAttention;
}

bool NeedsProbe(const FillDecision& decision) {
  return decision.mode == Mode::kQuality && decision.selector == Selector::kProbe;
}

int64_t ProbeBegin(const FillDecision& decision, int64_t tokens) {
  return std::max(TailBegin(decision, tokens), tokens - kProbeRows);
}

}  // namespace ridgefill::ridge
