#include "engine/ridge/selection.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <unordered_map>

#include "engine/base/check.h"
#include "engine/base/rng.h"

namespace ridgefill::ridge {
namespace {

constexpr uint64_t kRandomSeed = 0x5e1ec7;

bool IsIn(absl::Span<const int32_t> rows, int64_t row) {
  return std::binary_search(rows.begin(), rows.end(), row);
}

struct Window {
  int64_t begin = 0, end = 0;  // rows
};

Window WindowAround(int64_t row, int64_t rows, const SelectionOptions& options) {
  const int64_t begin = row - options.before;
  return {std::max<int64_t>(0, begin), std::min(rows, begin + options.window)};
}

// Rows of a bulk that score enough, best first, the lower one of equals.
std::vector<int32_t> Peaks(absl::Span<const float> scores, int64_t bulk_end,
                           absl::Span<const int32_t> outliers, float least) {
  std::vector<int32_t> rows;
  for (int64_t row = 0; row < bulk_end; ++row) {
    const bool counts = scores[row] > 0 && scores[row] >= least;  // a NaN does not
    if (counts && !IsIn(outliers, row)) rows.push_back(static_cast<int32_t>(row));
  }
  std::stable_sort(rows.begin(), rows.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  return rows;
}

std::vector<int32_t> Merged(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  std::vector<int32_t> rows;
  rows.reserve(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(rows));
  return rows;
}

// Half a row more, or the rounding of a share like 0.05f would cost a window.
int64_t RowsOfShare(float share, int64_t bulk_rows) {
  return std::llround(double{share} * static_cast<double>(bulk_rows));
}

}  // namespace

std::vector<int32_t> SelectWindows(absl::Span<const float> scores, int64_t bulk_end,
                                   absl::Span<const int32_t> outliers, const SelectionOptions& options) {
  RF_CHECK(options.window > 0 && static_cast<int64_t>(scores.size()) >= bulk_end);
  std::vector<bool> exact(bulk_end, false), selected(bulk_end, false);
  for (const int32_t row : outliers) {
    if (row < bulk_end) exact[row] = true;
  }
  int64_t room = RowsOfShare(options.share, bulk_end);
  for (const int32_t peak : Peaks(scores, bulk_end, outliers, options.least)) {
    if (exact[peak]) continue;
    const auto [begin, end] = WindowAround(peak, bulk_end, options);
    const int64_t cost = std::count(exact.begin() + begin, exact.begin() + end, false);
    if (cost > room) break;
    room -= cost;
    for (int64_t row = begin; row < end; ++row) selected[row] = selected[row] || !exact[row];
    std::fill(exact.begin() + begin, exact.begin() + end, true);
  }
  std::vector<int32_t> rows;
  for (int64_t row = 0; row < bulk_end; ++row) {
    if (selected[row]) rows.push_back(static_cast<int32_t>(row));
  }
  return rows;
}

std::vector<int32_t> SelectSingles(absl::Span<const float> scores, int64_t bulk_end,
                                   absl::Span<const int32_t> taken, int64_t count) {
  std::vector<int32_t> rows = Peaks(scores, bulk_end, taken, 0);
  rows.resize(std::min<size_t>(rows.size(), std::max<int64_t>(0, count)));
  std::sort(rows.begin(), rows.end());
  return rows;
}

std::vector<float> RandomScores(int64_t rows, uint64_t seed) {
  base::Rng rng(seed);
  std::vector<float> scores(rows);
  for (float& score : scores) score = static_cast<float>(rng.NextDouble());
  return scores;
}

std::vector<float> RarityScores(absl::Span<const int32_t> tokens, const SelectionOptions& options) {
  std::unordered_map<int32_t, int> counts;
  for (const int32_t token : tokens) ++counts[token];
  const int64_t rows = static_cast<int64_t>(tokens.size());
  std::vector<double> below(rows + 1);  // sums of the rows below each
  for (int64_t row = 0; row < rows; ++row) below[row + 1] = below[row] + 1.0 / counts[tokens[row]];
  std::vector<float> scores(rows);
  for (int64_t row = 0; row < rows; ++row) {
    const Window window = WindowAround(row, rows, options);
    scores[row] = static_cast<float>(below[window.end] - below[window.begin]);
  }
  return scores;
}

std::vector<int32_t> SelectRows(const FillDecision& decision, absl::Span<const int32_t> tokens,
                                absl::Span<const float> attention, absl::Span<const int32_t> outliers) {
  const int64_t bulk_end = TailBegin(decision, static_cast<int64_t>(tokens.size()));
  if (!HasRoomForAWindow(decision, bulk_end)) return {};
  SelectionOptions options;
  options.share = decision.share;
  switch (decision.selector) {
    case Selector::kAttention: {
      options.least = kLeastAttention;
      const std::vector<int32_t> windows = SelectWindows(attention, bulk_end, outliers, options);
      const int64_t room = RowsOfShare(decision.share, bulk_end) - static_cast<int64_t>(windows.size());
      const int64_t count = std::min({room, RowsOfShare(kSingleShare, bulk_end), int64_t{kMostSingles}});
      return Merged(windows, SelectSingles(attention, bulk_end, Merged(outliers, windows), count));
    }
    case Selector::kProbe:
      options.least = kLeastProbe;
      return SelectWindows(attention, bulk_end, outliers, options);
    case Selector::kRandom:
      return SelectWindows(RandomScores(bulk_end, kRandomSeed), bulk_end, outliers, options);
    case Selector::kRarity:
      return SelectWindows(RarityScores(tokens, options), bulk_end, outliers, options);
    case Selector::kNone:
      return {};
  }
  RF_CHECK(false);
}

int64_t MostSelected(const FillDecision& decision, int64_t bulk_rows) {
  return decision.mode == Mode::kQuality ? RowsOfShare(decision.share, bulk_rows) : 0;
}

bool HasRoomForAWindow(const FillDecision& decision, int64_t bulk_rows) {
  return MostSelected(decision, bulk_rows) >= kSelectionWindow;
}

bool NeedsAttentionScores(const FillDecision& decision) {
  return decision.mode == Mode::kQuality && decision.selector == Selector::kAttention && decision.share > 0;
}

bool NeedsProbe(const FillDecision& decision) {
  return decision.mode == Mode::kQuality && decision.selector == Selector::kProbe && decision.share > 0;
}

int64_t ProbeBegin(const FillDecision& decision, int64_t tokens) {
  return std::max(TailBegin(decision, tokens), tokens - kProbeRows);
}

}  // namespace ridgefill::ridge
