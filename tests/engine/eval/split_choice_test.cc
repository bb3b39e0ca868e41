#include "engine/eval/split_choice.h"

#include <gmock/gmock.h>

#include "engine/base/status.h"

namespace ridgefill::eval {
namespace {

using ridge::SweptSplit;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

SweptSplit Candidate(int split, double loss_high, double needle, int64_t solved = 20) {
  return {split,
          false,
          false,
          {{"nll", "tail", 4096, 512, 16, 5, 4, 6},
           {"nll", "continuation", 4096, 512, 16, loss_high - 0.01, loss_high - 0.02, loss_high},
           {"needle", "single", 1024, 256, 20, 1, 0.8, 1},
           {"needle", "multi_key", 1024, 256, solved, needle, 0, 1}}};
}

TEST(SplitChoice, TheSmallestWithinBothBoundsIsChosen) {
  std::vector<SweptSplit> all = {Candidate(15, 0.05, 1), Candidate(16, 0.02, 0.94), Candidate(17, 0.02, 0.95),
                                 Candidate(18, 0.03, 1), Candidate(19, 0.01, 1)};
  ASSERT_TRUE(ChooseSplit({0.02, 0.95}, all).ok());
  std::vector<int> within, chosen;
  for (const SweptSplit& swept : all) {
    if (swept.within) within.push_back(swept.split);
    if (swept.chosen) chosen.push_back(swept.split);
  }
  EXPECT_EQ(within, (std::vector<int>{17, 19})) << "a bound that is reached is kept; the tail has none";
  EXPECT_EQ(chosen, (std::vector<int>{17}));
  ASSERT_TRUE(ChooseSplit({0.05, 0.9}, all).ok()) << "old marks do not stay";
  EXPECT_TRUE(all[0].chosen);
  EXPECT_FALSE(all[2].chosen);
}

TEST(SplitChoice, WhatKeepsASplitOutIsNamed) {
  EXPECT_THAT(OutOfBounds(Candidate(15, 0.02, 0.95), {0.02, 0.95}), IsEmpty());
  EXPECT_THAT(OutOfBounds(Candidate(15, 0.021, 1), {0.02, 0.95}),
              AllOf(HasSubstr("continuation +0.0110 [+0.0010, +0.0210]"), HasSubstr("max_loss 0.02"),
                    Not(HasSubstr("multi_key"))));
  EXPECT_THAT(OutOfBounds(Candidate(15, 0.02, 0.9), {0.02, 0.95}),
              AllOf(HasSubstr("multi_key 0.90 of the 20"), HasSubstr("min_needle 0.95"),
                    Not(HasSubstr("continuation"))));
  EXPECT_THAT(OutOfBounds(Candidate(15, 0.02, 0, 0), {0.02, 0.95}),
              HasSubstr("multi_key: exact itself solves no item"));
  EXPECT_THAT(OutOfBounds(Candidate(15, 0.02, 0, 0), {0.02, 0}), IsEmpty()) << "needles do not count";
}

TEST(SplitChoice, WithoutOneTheFiguresAndTheBoundsThatItTakesAreNamed) {
  std::vector<SweptSplit> all = {Candidate(15, 0.5, 0.1), Candidate(16, 0.0312, 0.85)};
  const absl::Status status = ChooseSplit({0.02, 0.95}, all);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(base::GetErrorDetail(status)->reason, "FIT_NO_SPLIT");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("split 15: continuation +0.4900"), HasSubstr("split 16: continuation +0.0212"),
                    HasSubstr("split 16 would do with max_loss 0.0312 and min_needle 0.85")));
  EXPECT_FALSE(all[0].within || all[1].within || all[1].chosen);
  ASSERT_TRUE(ChooseSplit({0.0312, 0.85}, all).ok()) << "the bounds that were named";
  EXPECT_TRUE(all[1].chosen);
  all.pop_back();
  EXPECT_THAT(std::string(ChooseSplit({0.6, 0.95}, all).message()),
              AllOf(HasSubstr("would do with min_needle 0.10"), Not(HasSubstr("max_loss"))));
  all.clear();
  EXPECT_FALSE(ChooseSplit({}, all).ok());
}

TEST(SplitChoice, FiguresAreThoseOfTheRidgeFillInSpeed) {
  const auto sweep = [](int split, const char* fill, const char* mode, const char* window, double mean) {
    return Record{{"measure", "sweep"}, {"split", split},  {"fill", fill},    {"mode", mode},
                  {"window", window},   {"tail", 512},     {"length", 4096},  {"documents", 7},
                  {"mean", mean},       {"low", mean - 1}, {"high", mean + 1}};
  };
  const Record needle = {
      {"measure", "needle"}, {"split", 18},
      {"fill", "ridge"},     {"mode", "SPEED"},
      {"task", "single"},    {"tail", 256},
      {"length", 1024},      {"mean", 0.5},
      {"low", 0.4},          {"high", 0.6},
      {"items", 20},         {"on_solved", {{"items", 12}, {"mean", 0.75}, {"low", 0.5}, {"high", 0.9}}}};
  const Record records[] = {sweep(18, "ridge", "SPEED", "tail", 1),
                            sweep(18, "identity", "SPEED", "tail", 9),
                            sweep(18, "ridge", "QUALITY", "tail", 9),
                            sweep(15, "ridge", "SPEED", "tail", 2),
                            {{"measure", "needle"}, {"fill", "none"}, {"mode", "EXACT"}},
                            needle};
  const std::vector<SweptSplit> got = SweptSplits(records);
  ASSERT_THAT(got, SizeIs(2));
  EXPECT_EQ(got[0].split, 15);
  ASSERT_THAT(got[0].figures, SizeIs(1));
  EXPECT_EQ(got[0].figures[0].mean, 2);
  EXPECT_EQ(got[1].split, 18);
  ASSERT_THAT(got[1].figures, SizeIs(2));
  EXPECT_EQ(got[1].figures[0].measure, "nll");
  EXPECT_EQ(got[1].figures[0].cell, "tail");
  EXPECT_EQ(got[1].figures[0].count, 7);
  EXPECT_EQ(got[1].figures[0].high, 2);
  EXPECT_EQ(got[1].figures[1].cell, "single");
  EXPECT_EQ(got[1].figures[1].mean, 0.75) << "of the items that exact solves";
  EXPECT_EQ(got[1].figures[1].count, 12);
  EXPECT_EQ(got[1].figures[1].tail, 256);
}

}  // namespace
}  // namespace ridgefill::eval
