#include "engine/ridge/fill_plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "engine/base/rng.h"

namespace ridgefill::ridge {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

FillDecision Decision(Mode mode, int tail) {
  FillDecision decision;
  decision.mode = mode;
  decision.tail = tail;
  return decision;
}

TEST(TailBegin, FollowsModeAndLength) {
  EXPECT_EQ(TailBegin(Decision(Mode::kExact, 512), 8000), 0);
  EXPECT_EQ(TailBegin(Decision(Mode::kSpeed, 512), 8000), 7488);
  EXPECT_EQ(TailBegin(Decision(Mode::kQuality, 512), 8000), 7488);
  EXPECT_EQ(TailBegin(Decision(Mode::kSpeed, 512), 513), 1);
  EXPECT_EQ(TailBegin(Decision(Mode::kSpeed, 512), 512), 0);
  EXPECT_EQ(TailBegin(Decision(Mode::kSpeed, 512), 3), 0);
  EXPECT_EQ(TailBegin(Decision(Mode::kSpeed, 0), 100), 99) << "the last row is exact without any tail";
}

TEST(IsOutlier, RowZeroAlwaysOthersByNorm) {
  EXPECT_TRUE(IsOutlier(0, 0.0f, 10.0f));
  EXPECT_FALSE(IsOutlier(1, 10.0f, 10.0f));
  EXPECT_TRUE(IsOutlier(1, std::nextafter(10.0f, 11.0f), 10.0f));
  EXPECT_TRUE(IsOutlier(5, std::numeric_limits<float>::quiet_NaN(), 10.0f));
  EXPECT_TRUE(IsOutlier(5, std::numeric_limits<float>::infinity(), 10.0f));
  EXPECT_FALSE(IsOutlier(5, 1e30f, 0.0f)) << "no threshold: only row 0";
  EXPECT_TRUE(IsOutlier(0, 1.0f, 0.0f));
}

TEST(MakeFillPlan, ExactHasEveryRow) {
  const int32_t rows[] = {0, 3, 7};
  const FillPlan plan = MakeFillPlan(Decision(Mode::kExact, 4), 10, rows, rows);
  EXPECT_EQ(plan.exact_count(), 10);
  EXPECT_EQ(plan.filled_count(), 0);
  EXPECT_THAT(plan.outliers, IsEmpty());
  EXPECT_THAT(plan.selected, IsEmpty());
  EXPECT_THAT(plan.ExactRows(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(MakeFillPlan, OutliersWinOverSelectionAndTailOverBoth) {
  const int32_t outliers[] = {5, 2, 5, 9};
  const int32_t selected[] = {8, 3, 2, 3};
  const FillPlan plan = MakeFillPlan(Decision(Mode::kSpeed, 3), 10, outliers, selected);
  EXPECT_EQ(plan.tail_begin, 7);
  EXPECT_THAT(plan.outliers, ElementsAre(0, 2, 5));
  EXPECT_THAT(plan.selected, ElementsAre(3));
  EXPECT_THAT(plan.ExactRows(), ElementsAre(0, 2, 3, 5, 7, 8, 9));
  EXPECT_EQ(plan.exact_count(), 7);
  EXPECT_EQ(plan.filled_count(), 3);
}

std::vector<int32_t> RandomRows(base::Rng& rng, int64_t tokens) {
  std::vector<int32_t> rows(rng.NextBelow(20));
  for (int32_t& row : rows) row = static_cast<int32_t>(rng.NextBelow(tokens));
  return rows;
}

// Whatever the lengths and rows: a partition, row 0 and the last row exact, counts that add up.
TEST(MakeFillPlan, PartitionsEveryPrompt) {
  base::Rng rng(1);
  for (int trial = 0; trial < 2000; ++trial) {
    const int64_t tokens = 1 + static_cast<int64_t>(rng.NextBelow(trial % 2 ? 40 : 3000));
    const FillDecision decision =
        Decision(trial % 3 ? Mode::kSpeed : Mode::kQuality, static_cast<int>(rng.NextBelow(tokens + 10)));
    const std::vector<int32_t> outliers = RandomRows(rng, tokens), selected = RandomRows(rng, tokens);
    const FillPlan plan = MakeFillPlan(decision, tokens, outliers, selected);
    const std::vector<int32_t> rows = plan.ExactRows();

    ASSERT_TRUE(std::is_sorted(rows.begin(), rows.end()));
    const std::set<int32_t> unique(rows.begin(), rows.end());
    ASSERT_EQ(unique.size(), rows.size());
    ASSERT_EQ(static_cast<int64_t>(rows.size()), plan.exact_count());
    ASSERT_EQ(plan.exact_count() + plan.filled_count(), tokens);
    ASSERT_EQ(rows.front(), 0);
    ASSERT_EQ(rows.back(), tokens - 1);
    for (int32_t row : outliers) ASSERT_TRUE(unique.contains(row));
    for (int32_t row : selected) ASSERT_TRUE(unique.contains(row));
    for (int64_t row = std::max<int64_t>(0, tokens - decision.tail); row < tokens; ++row) {
      ASSERT_TRUE(unique.contains(static_cast<int32_t>(row)));
    }
    for (int32_t row : rows) {  // and nothing that nobody asked for
      const bool asked = row == 0 || row == tokens - 1 || row >= tokens - decision.tail ||
                         std::count(outliers.begin(), outliers.end(), row) ||
                         std::count(selected.begin(), selected.end(), row);
      ASSERT_TRUE(asked) << row;
    }
  }
}

// Chunks may report their rows in any order and more than once.
TEST(MakeFillPlan, DoesNotDependOnTheOrderOfChunks) {
  base::Rng rng(2);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<int32_t> outliers = RandomRows(rng, 500), selected = RandomRows(rng, 500);
    const FillPlan want = MakeFillPlan(Decision(Mode::kQuality, 64), 500, outliers, selected);
    for (size_t i = 1; i < outliers.size(); ++i) std::swap(outliers[i], outliers[rng.NextBelow(i + 1)]);
    for (size_t i = 1; i < selected.size(); ++i) std::swap(selected[i], selected[rng.NextBelow(i + 1)]);
    if (!outliers.empty()) outliers.push_back(outliers.front());
    const FillPlan got = MakeFillPlan(Decision(Mode::kQuality, 64), 500, outliers, selected);
    ASSERT_EQ(got.outliers, want.outliers);
    ASSERT_EQ(got.selected, want.selected);
    ASSERT_EQ(got.tail_begin, want.tail_begin);
  }
}

}  // namespace
}  // namespace ridgefill::ridge
