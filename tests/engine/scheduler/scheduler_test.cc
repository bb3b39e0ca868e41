#include "engine/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "engine/base/rng.h"

namespace ridgefill::scheduler {
namespace {

using testing::ElementsAreArray;

struct Case {
  std::string name;
  SchedulerState state;
  std::vector<RequestId> admit;
  std::optional<PromptPiece> piece;
  std::vector<RequestId> decode;
};

class DecideTest : public testing::TestWithParam<Case> {};

TEST_P(DecideTest, Decides) {
  const Case& c = GetParam();
  const StepPlan plan = Decide(c.state);
  EXPECT_THAT(plan.admit, ElementsAreArray(c.admit));
  EXPECT_THAT(plan.decode, ElementsAreArray(c.decode));
  ASSERT_EQ(plan.piece.has_value(), c.piece.has_value());
  if (!c.piece) return;
  EXPECT_EQ(plan.piece->id, c.piece->id);
  EXPECT_EQ(plan.piece->rows, c.piece->rows);
}

const Case kCases[] = {
    {"Nothing", {.max_admitted = 4, .piece_rows = 256}, {}, {}, {}},
    {"AllFit", {.queued = {{1, 3}, {2, 4}}, .blocks_free = 7, .max_admitted = 4}, {1, 2}, {}, {}},
    {"SecondDoesNotFit", {.queued = {{1, 3}, {2, 5}}, .blocks_free = 7, .max_admitted = 4}, {1}, {}, {}},
    {"AShortOneNeverOvertakes",
     {.queued = {{1, 9}, {2, 1}}, .blocks_free = 8, .max_admitted = 4},
     {},
     {},
     {}},
    {"NoSeatLeft",
     {.queued = {{1, 1}, {2, 1}}, .admitted = 3, .blocks_free = 8, .max_admitted = 4},
     {1},
     {},
     {}},
    {"SeatsFull", {.queued = {{1, 1}}, .admitted = 4, .blocks_free = 8, .max_admitted = 4}, {}, {}, {}},
    {"PieceOfALongPrompt", {.prompts = {{5, 1000}}, .piece_rows = 256}, {}, PromptPiece{5, 256}, {}},
    {"LastPiece", {.prompts = {{5, 7}}, .piece_rows = 256}, {}, PromptPiece{5, 7}, {}},
    {"OnePieceAStepInOrder", {.prompts = {{5, 300}, {6, 1}}, .piece_rows = 256}, {}, PromptPiece{5, 256}, {}},
    {"PieceSharesTheStep",
     {.prompts = {{9, 40}}, .running = {2, 3, 4}, .piece_rows = 32},
     {},
     PromptPiece{9, 32},
     {2, 3, 4}},
    {"EverythingAtOnce",
     {.queued = {{7, 2}, {8, 2}},
      .prompts = {{6, 64}},
      .running = {1, 2},
      .admitted = 4,
      .blocks_free = 3,
      .max_admitted = 8,
      .piece_rows = 64},
     {7},
     PromptPiece{6, 64},
     {1, 2}},
};
INSTANTIATE_TEST_SUITE_P(Table, DecideTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// A flood of short requests behind a long one: the long one is admitted as soon as its blocks are free.
TEST(DecideTest, NoStarvationUnderRandomLoad) {
  base::Rng rng(3);
  SchedulerState state{.blocks_free = 20, .max_admitted = 8, .piece_rows = 64};
  std::map<RequestId, int64_t> holding;
  RequestId next = 1, last_admitted = 0;
  for (int step = 0; step < 5000; ++step) {
    if (state.queued.size() < 50) {
      state.queued.push_back(
          {next++, static_cast<int64_t>(1 + rng.NextBelow(rng.NextBelow(10) == 0 ? 20 : 3))});
    }
    for (RequestId id : Decide(state).admit) {
      ASSERT_EQ(id, last_admitted + 1) << "admission must follow the order of arrival";
      last_admitted = id;
      ASSERT_EQ(state.queued.front().id, id);
      holding[id] = state.queued.front().blocks;
      state.blocks_free -= state.queued.front().blocks;
      state.queued.erase(state.queued.begin());
    }
    ASSERT_GE(state.blocks_free, 0);
    ASSERT_LE(holding.size(), 8u);
    if (!holding.empty() && rng.NextBelow(2) == 0) {
      auto done = holding.begin();
      std::advance(done, rng.NextBelow(holding.size()));
      state.blocks_free += done->second;
      holding.erase(done);
    }
    state.admitted = static_cast<int>(holding.size());
  }
  EXPECT_GT(last_admitted, 1000u);
}

}  // namespace
}  // namespace ridgefill::scheduler
