#include "engine/ridge/selection.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "engine/base/rng.h"

namespace ridgefill::ridge {
namespace {

using testing::ElementsAreArray;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<int32_t> Rows(int32_t begin, int32_t end) {
  std::vector<int32_t> rows(end - begin);
  std::iota(rows.begin(), rows.end(), begin);
  return rows;
}

// `bulk` rows of score 1, but for those named.
std::vector<float> Flat(int64_t bulk, const std::vector<std::pair<int, float>>& peaks) {
  std::vector<float> scores(bulk, 1.0f);
  for (const auto& [row, score] : peaks) scores[row] = score;
  return scores;
}

// The window around a row that draws attention.
std::vector<int32_t> Around(int32_t row) {
  return Rows(row - kWindowBefore, row - kWindowBefore + kSelectionWindow);
}

TEST(SelectWindows, TakesTheWholeWindowAroundTheBestRow) {
  const auto scores = Flat(480, {{100, 5.0f}});
  EXPECT_THAT(SelectWindows(scores, 480, {}, {.share = 0.05f}), ElementsAreArray(Rows(93, 117)));
}

TEST(SelectWindows, TheShareCountsRows) {
  const auto scores = Flat(480, {{100, 5.0f}, {300, 4.0f}, {440, 3.0f}});
  EXPECT_THAT(SelectWindows(scores, 480, {}, {.share = 0.0479f}), IsEmpty());  // 23 rows
  EXPECT_THAT(SelectWindows(scores, 480, {}, {.share = 0.05f}), SizeIs(24));
  EXPECT_THAT(SelectWindows(scores, 480, {}, {.share = 0.1f}), SizeIs(48));
  EXPECT_THAT(SelectWindows(scores, 480, {}, {.share = 1.0f}), SizeIs(480));
  EXPECT_THAT(SelectWindows(scores, 480, {}, {.share = 0.0f}), IsEmpty());
}

TEST(SelectWindows, EqualRowsGoToTheLowerOne) {
  const auto scores = Flat(240, {{70, 5.0f}, {200, 5.0f}});
  EXPECT_THAT(SelectWindows(scores, 240, {}, {.share = 0.1f}), ElementsAreArray(Around(70)));
  EXPECT_THAT(SelectWindows(Flat(240, {}), 240, {}, {.share = 0.1f}), ElementsAreArray(Rows(0, 17)))
      << "row 0's window, cut at the prompt's first row; that of row 17 no longer fits";
}

TEST(SelectWindows, NeighboursShareTheirRows) {
  const auto scores = Flat(240, {{100, 5.0f}, {105, 4.0f}, {117, 3.0f}});
  // 105 is in the first one's window; that of 117 begins inside it and costs the 17 rows behind.
  EXPECT_THAT(SelectWindows(scores, 240, {}, {.share = 41.0f / 240}), ElementsAreArray(Rows(93, 134)));
  EXPECT_THAT(SelectWindows(scores, 240, {}, {.share = 40.0f / 240}), ElementsAreArray(Around(100)));
}

TEST(SelectWindows, TheBulkMayEndInsideAWindow) {
  const auto scores = Flat(400, {{330, 5.0f}, {350, 9.0f}});  // rows from 340 on are tail
  EXPECT_THAT(SelectWindows(scores, 340, {}, {.share = 0.06f}), ElementsAreArray(Rows(323, 340)));
}

TEST(SelectWindows, OutliersNeitherWinNorCost) {
  const auto scores = Flat(240, {{0, 100.0f}, {40, 100.0f}, {200, 2.0f}});
  const std::vector<int32_t> outliers = {0, 40, 41};
  EXPECT_THAT(SelectWindows(scores, 240, outliers, {.share = 0.1f}), ElementsAreArray(Around(200)));
  // A window of 24 with two outliers costs 22 rows, and they are not selected again.
  const auto second = Flat(240, {{45, 3.0f}});
  const auto rows = SelectWindows(second, 240, outliers, {.share = 22.0f / 240});
  EXPECT_THAT(rows, SizeIs(22));
  for (int32_t outlier : outliers) EXPECT_THAT(rows, testing::Not(testing::Contains(outlier)));
}

TEST(SelectWindows, RowsBelowTheLeastScoreStayFilled) {
  const auto scores = Flat(2400, {{100, 5.0f}, {2000, 3.0f}, {2200, 2.9f}});
  SelectionOptions options{.share = 0.5f, .least = 3.0f};
  EXPECT_THAT(SelectWindows(scores, 2400, {}, options), SizeIs(48));
  options.least = 6.0f;
  EXPECT_THAT(SelectWindows(scores, 2400, {}, options), IsEmpty());
  options.share = 0.01f;  // the cap holds, however many reach it
  options.least = 2.0f;
  EXPECT_THAT(SelectWindows(scores, 2400, {}, options), ElementsAreArray(Around(100)));
}

TEST(SelectWindows, ScoresThatAreNoNumbersWinNothing) {
  const auto scores = Flat(240, {{70, std::nanf("")}, {200, 5.0f}});
  EXPECT_THAT(SelectWindows(scores, 240, {}, {.share = 0.1f}), ElementsAreArray(Around(200)));
  const std::vector<float> none(240, std::nanf(""));
  EXPECT_THAT(SelectWindows(none, 240, {}, {.share = 0.1f}), IsEmpty());
}

TEST(SelectWindows, NothingWithoutBulk) { EXPECT_THAT(SelectWindows({}, 0, {}, {}), IsEmpty()); }

TEST(SelectSingles, TakesTheBestRowsThatAreNotTaken) {
  const auto scores = Flat(100, {{10, 5.0f}, {20, 4.0f}, {30, 4.0f}, {40, 9.0f}, {90, 7.0f}});
  EXPECT_THAT(SelectSingles(scores, 80, {{10, 11}}, 2), testing::ElementsAre(20, 40)) << "90 is tail";
  EXPECT_THAT(SelectSingles(scores, 80, {{10, 11}}, 5), testing::ElementsAre(0, 1, 20, 30, 40));
  EXPECT_THAT(SelectSingles(scores, 80, {}, 200), ElementsAreArray(Rows(0, 80)));
  EXPECT_THAT(SelectSingles(scores, 80, {}, 0), IsEmpty());
  EXPECT_THAT(SelectSingles(scores, 80, {}, -3), IsEmpty());
  std::vector<float> none(80, 0.0f);
  none[3] = std::nanf("");
  EXPECT_THAT(SelectSingles(none, 80, {}, 5), IsEmpty()) << "what nobody looks at";
}

// Whatever the scores: ascending rows of the bulk, within the share, whole windows but for outliers.
TEST(SelectWindows, HoldsForAnyScores) {
  base::Rng rng(3);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t bulk = 1 + static_cast<int64_t>(rng.NextBelow(1000));
    std::vector<float> scores(bulk);
    for (float& score : scores) score = static_cast<float>(rng.NextBelow(20));
    std::vector<int32_t> outliers;
    for (int32_t row = 0; row < bulk; ++row) {
      if (rng.NextBelow(30) == 0) outliers.push_back(row);
    }
    const SelectionOptions options{.share = static_cast<float>(rng.NextDouble()),
                                   .least = static_cast<float>(rng.NextBelow(3))};
    const auto rows = SelectWindows(scores, bulk, outliers, options);
    ASSERT_LE(static_cast<double>(rows.size()), options.share * static_cast<double>(bulk) + 0.5);
    const std::set<int32_t> selected(rows.begin(), rows.end());
    ASSERT_EQ(selected.size(), rows.size());
    ASSERT_TRUE(std::is_sorted(rows.begin(), rows.end()));
    for (int32_t row : rows) {
      ASSERT_FALSE(std::binary_search(outliers.begin(), outliers.end(), row));
      bool in_window = false;
      for (int64_t peak = row - (options.window - options.before - 1); peak <= row + options.before; ++peak) {
        bool whole = 0 <= peak && peak < bulk;
        const int64_t begin = peak - options.before, end = begin + options.window;
        for (int64_t near = std::max<int64_t>(0, begin); near < std::min(bulk, end); ++near) {
          const auto at = static_cast<int32_t>(near);
          whole &= selected.contains(at) || std::binary_search(outliers.begin(), outliers.end(), at);
        }
        in_window |= whole;
      }
      ASSERT_TRUE(in_window) << row;
    }
  }
}

TEST(SelectRows, FollowsTheDecision) {
  std::vector<int32_t> tokens(1024, 7);
  for (int i = 0; i < 24; ++i) tokens[640 + i] = 1000 + i;  // a window of tokens that occur once
  FillDecision decision;
  decision.mode = Mode::kQuality;
  decision.tail = 256;
  decision.share = 24.0f / 768;  // one window
  std::vector<float> attention(1024, 0.002f);
  attention[0] = 0.5f;
  attention[100] = 0.006f;
  const std::vector<int32_t> outliers = {0};
  EXPECT_TRUE(NeedsAttentionScores(decision));
  EXPECT_THAT(SelectRows(decision, tokens, attention, outliers), ElementsAreArray(Around(100)));
  // Without a row that is worth a window, the share goes to single ones.
  attention[100] = 0.0039f;
  std::vector<int32_t> single = Rows(1, 24);
  single.push_back(100);
  EXPECT_THAT(SelectRows(decision, tokens, attention, outliers), ElementsAreArray(single));
  // Beside a window their own share at most, and no more than the decision's leaves.
  attention[100] = 0.006f;
  decision.share = 0.25f;
  EXPECT_THAT(SelectRows(decision, tokens, attention, outliers), SizeIs(24 + 38));  // 5 % of 768
  const std::vector<int32_t> many(40256, 7);
  const std::vector<float> alike(many.size(), 0.002f);
  EXPECT_THAT(SelectRows(decision, many, alike, outliers), SizeIs(kMostSingles));
  decision.share = 34.0f / 768;
  EXPECT_THAT(SelectRows(decision, tokens, attention, outliers), SizeIs(34));
  decision.share = 24.0f / 768;
  decision.selector = Selector::kProbe;  // whose maxima lie far higher
  EXPECT_FALSE(NeedsAttentionScores(decision));
  EXPECT_TRUE(NeedsProbe(decision));
  attention[100] = kLeastProbe;
  EXPECT_THAT(SelectRows(decision, tokens, attention, outliers), ElementsAreArray(Around(100)));
  attention[100] = 0.99f * kLeastProbe;
  EXPECT_THAT(SelectRows(decision, tokens, attention, outliers), IsEmpty());
  EXPECT_EQ(ProbeBegin(decision, 1024), 960);
  decision.tail = 20;
  EXPECT_EQ(ProbeBegin(decision, 1024), 1004) << "its rows are the tail's, at most";
  decision.tail = 256;
  decision.selector = Selector::kRarity;
  EXPECT_FALSE(NeedsAttentionScores(decision));
  EXPECT_FALSE(NeedsProbe(decision));
  EXPECT_THAT(SelectRows(decision, tokens, {}, outliers), ElementsAreArray(Rows(640, 664)));
  decision.selector = Selector::kRandom;
  const auto random = SelectRows(decision, tokens, {}, outliers);
  EXPECT_THAT(random, SizeIs(testing::AllOf(testing::Gt(0), testing::Le(24))));
  EXPECT_EQ(SelectRows(decision, tokens, {}, outliers), random);
  decision.share = 23.0f / 768;  // some windows at the ends are that short; a whole one is not
  EXPECT_FALSE(HasRoomForAWindow(decision, 768));
  EXPECT_THAT(SelectRows(decision, tokens, {}, outliers), IsEmpty());
  decision.share = 24.0f / 768;
  EXPECT_TRUE(HasRoomForAWindow(decision, 768));
  EXPECT_THAT(SelectRows(decision, tokens, {}, outliers), testing::Not(IsEmpty()));
  for (const Selector selector : {Selector::kAttention, Selector::kProbe}) {
    FillDecision nothing = decision;
    nothing.selector = selector;
    nothing.share = 0;
    EXPECT_FALSE(NeedsAttentionScores(nothing) || NeedsProbe(nothing)) << "nothing to score for";
  }
  decision.selector = Selector::kNone;
  EXPECT_THAT(SelectRows(decision, tokens, {}, outliers), IsEmpty());
  decision.selector = Selector::kAttention;
  decision.mode = Mode::kSpeed;
  EXPECT_FALSE(NeedsAttentionScores(decision));
  EXPECT_THAT(SelectRows(decision, tokens, attention, outliers), IsEmpty());
}

// Whatever the scores: ascending, none twice, none an outlier, within the share, and all that the windows
// take.
TEST(SelectRows, HoldsForAnyScores) {
  base::Rng rng(4);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t count = 400 + static_cast<int64_t>(rng.NextBelow(5000));
    const std::vector<int32_t> tokens(count, 7);
    std::vector<float> scores(count);
    for (float& score : scores) score = std::pow(static_cast<float>(rng.NextDouble()), 40.0f);
    std::vector<int32_t> outliers;
    for (int32_t row = 0; row < count; ++row) {
      if (row == 0 || rng.NextBelow(50) == 0) outliers.push_back(row);
    }
    FillDecision decision;
    decision.mode = Mode::kQuality;
    decision.tail = 256;
    decision.share = static_cast<float>(rng.NextDouble());
    const int64_t bulk = count - decision.tail;
    const auto rows = SelectRows(decision, tokens, scores, outliers);
    ASSERT_LE(static_cast<int64_t>(rows.size()), MostSelected(decision, bulk));
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_TRUE(i == 0 || rows[i - 1] < rows[i]);
      ASSERT_TRUE(rows[i] < bulk && !std::binary_search(outliers.begin(), outliers.end(), rows[i]));
    }
    if (!HasRoomForAWindow(decision, bulk)) continue;
    SelectionOptions options{.share = decision.share, .least = kLeastAttention};
    const auto windows = SelectWindows(scores, bulk, outliers, options);
    ASSERT_TRUE(std::includes(rows.begin(), rows.end(), windows.begin(), windows.end()));
  }
}

}  // namespace
}  // namespace ridgefill::ridge
