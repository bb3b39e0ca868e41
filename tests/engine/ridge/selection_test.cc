#include "engine/ridge/selection.h"

#include <gmock/gmock.h>

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

TEST(SelectWindows, TakesTheWholeWindowOfTheBestRow) {
  const auto scores = Flat(640, {{100, 5.0f}});
  EXPECT_THAT(SelectWindows(scores, 640, {}, {.share = 0.05f}), ElementsAreArray(Rows(96, 128)));
}

TEST(SelectWindows, TheShareCountsRows) {
  const auto scores = Flat(640, {{100, 5.0f}, {300, 4.0f}, {639, 3.0f}});
  EXPECT_THAT(SelectWindows(scores, 640, {}, {.share = 0.049f}), IsEmpty());  // 31 rows
  EXPECT_THAT(SelectWindows(scores, 640, {}, {.share = 0.05f}), SizeIs(32));
  EXPECT_THAT(SelectWindows(scores, 640, {}, {.share = 0.1f}), SizeIs(64));
  EXPECT_THAT(SelectWindows(scores, 640, {}, {.share = 1.0f}), SizeIs(640));
  EXPECT_THAT(SelectWindows(scores, 640, {}, {.share = 0.0f}), IsEmpty());
}

TEST(SelectWindows, EqualWindowsGoToTheLowerOne) {
  const auto scores = Flat(320, {{70, 5.0f}, {200, 5.0f}});
  EXPECT_THAT(SelectWindows(scores, 320, {}, {.share = 0.1f}), ElementsAreArray(Rows(64, 96)));
  EXPECT_THAT(SelectWindows(Flat(320, {}), 320, {}, {.share = 0.1f}), ElementsAreArray(Rows(0, 32)));
}

TEST(SelectWindows, TheBulkMayEndInsideAWindow) {
  const auto scores = Flat(400, {{330, 5.0f}, {350, 9.0f}});  // rows from 340 on are tail
  EXPECT_THAT(SelectWindows(scores, 340, {}, {.share = 0.06f}), ElementsAreArray(Rows(320, 340)));
}

TEST(SelectWindows, OutliersNeitherWinNorCost) {
  const auto scores = Flat(320, {{0, 100.0f}, {40, 100.0f}, {200, 2.0f}});
  const std::vector<int32_t> outliers = {0, 40, 41};
  EXPECT_THAT(SelectWindows(scores, 320, outliers, {.share = 0.1f}), ElementsAreArray(Rows(192, 224)));
  // A window of 32 with two outliers costs 30 rows, and they are not selected again.
  const auto second = Flat(320, {{50, 3.0f}});
  const auto rows = SelectWindows(second, 320, outliers, {.share = 30.0f / 320});
  EXPECT_THAT(rows, SizeIs(30));
  for (int32_t outlier : outliers) EXPECT_THAT(rows, testing::Not(testing::Contains(outlier)));
}

TEST(SelectWindows, WindowsBelowTheLeastScoreStayFilled) {
  const auto scores = Flat(3200, {{100, 5.0f}, {2000, 3.0f}, {2500, 2.9f}});
  SelectionOptions options{.share = 0.5f, .least = 3.0f};
  EXPECT_THAT(SelectWindows(scores, 3200, {}, options), SizeIs(64));
  options.least = 6.0f;
  EXPECT_THAT(SelectWindows(scores, 3200, {}, options), IsEmpty());
  options.share = 0.01f;  // the cap holds, however many reach it
  options.least = 2.0f;
  EXPECT_THAT(SelectWindows(scores, 3200, {}, options), ElementsAreArray(Rows(96, 128)));
}

TEST(SelectWindows, ScoresThatAreNoNumbersWinNothing) {
  const auto scores = Flat(320, {{70, std::nanf("")}, {200, 5.0f}});
  EXPECT_THAT(SelectWindows(scores, 320, {}, {.share = 0.1f}), ElementsAreArray(Rows(192, 224)));
  const std::vector<float> none(320, std::nanf(""));
  EXPECT_THAT(SelectWindows(none, 320, {}, {.share = 0.1f}), IsEmpty());
}

TEST(SelectWindows, NothingWithoutBulk) { EXPECT_THAT(SelectWindows({}, 0, {}, {}), IsEmpty()); }

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
      for (int32_t near = row / 32 * 32; near < std::min<int64_t>(row / 32 * 32 + 32, bulk); ++near) {
        ASSERT_TRUE(selected.contains(near) || std::binary_search(outliers.begin(), outliers.end(), near));
      }
    }
  }
}

TEST(SelectRows, FollowsTheDecision) {
  std::vector<int32_t> tokens(1024, 7);
  for (int i = 0; i < 32; ++i) tokens[640 + i] = 1000 + i;  // a window of tokens that occur once
  FillDecision decision;
  decision.mode = Mode::kQuality;
  decision.tail = 256;
  decision.share = 0.05f;  // of 768: one window
  std::vector<float> attention(1024, 0.0005f);
  attention[0] = 0.5f;
  attention[100] = 0.002f;
  const std::vector<int32_t> outliers = {0};
  EXPECT_TRUE(NeedsAttentionScores(decision));
  EXPECT_THAT(SelectRows(decision, tokens, attention, outliers), ElementsAreArray(Rows(96, 128)));
  // Rows that draw little attention are not worth it, but the selectors to compare with spend their share.
  attention[100] = 0.0009f;
  EXPECT_THAT(SelectRows(decision, tokens, attention, outliers), IsEmpty());
  decision.selector = Selector::kProbe;  // whose maxima lie far higher
  EXPECT_FALSE(NeedsAttentionScores(decision));
  EXPECT_TRUE(NeedsProbe(decision));
  attention[100] = kLeastProbe;
  EXPECT_THAT(SelectRows(decision, tokens, attention, outliers), ElementsAreArray(Rows(96, 128)));
  attention[100] = 0.99f * kLeastProbe;
  EXPECT_THAT(SelectRows(decision, tokens, attention, outliers), IsEmpty());
  EXPECT_EQ(ProbeBegin(decision, 1024), 960);
  decision.tail = 20;
  EXPECT_EQ(ProbeBegin(decision, 1024), 1004) << "its rows are the tail's, at most";
  decision.tail = 256;
  decision.selector = Selector::kRarity;
  EXPECT_FALSE(NeedsAttentionScores(decision));
  EXPECT_FALSE(NeedsProbe(decision));
  EXPECT_THAT(SelectRows(decision, tokens, {}, outliers), ElementsAreArray(Rows(640, 672)));
  decision.selector = Selector::kRandom;
  const auto random = SelectRows(decision, tokens, {}, outliers);
  EXPECT_THAT(random, SizeIs(testing::AnyOf(31, 32)));
  EXPECT_EQ(SelectRows(decision, tokens, {}, outliers), random);
  decision.selector = Selector::kNone;
  EXPECT_THAT(SelectRows(decision, tokens, {}, outliers), IsEmpty());
  decision.selector = Selector::kAttention;
  decision.mode = Mode::kSpeed;
  EXPECT_FALSE(NeedsAttentionScores(decision));
  EXPECT_THAT(SelectRows(decision, tokens, attention, outliers), IsEmpty());
}

}  // namespace
}  // namespace ridgefill::ridge
