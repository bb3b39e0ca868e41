#include "engine/eval/paired.h"

#include <gmock/gmock.h>

namespace ridgefill::eval {
namespace {

std::vector<bool> Bools(const char* text) {
  std::vector<bool> out;
  for (; *text != 0; ++text) out.push_back(*text == '1');
  return out;
}

TEST(McNemar, CountsWhatOnlyOneSolves) {
  const McNemar test = ComparePaired(Bools("1110010"), Bools("1001011"));
  EXPECT_EQ(test.lost, 2);
  EXPECT_EQ(test.gained, 2);
  EXPECT_EQ(test.p, 1);
}

TEST(McNemar, IsTheTwoSidedBinomialTest) {
  // 0 of 6: 2 / 2^6. 1 of 8: 2 (1 + 8) / 2^8. None at all: 1.
  EXPECT_NEAR(ComparePaired(Bools("1111111"), Bools("1000000")).p, 2.0 / 64, 1e-12);
  EXPECT_NEAR(ComparePaired(Bools("11111110"), Bools("00000001")).p, 18.0 / 256, 1e-12);
  EXPECT_EQ(ComparePaired(Bools("1010"), Bools("1010")).p, 1);
  EXPECT_EQ(ComparePaired({}, {}).p, 1);
}

TEST(McNemar, DoesNotOverflowForManyItems) {
  std::vector<bool> first(3000, true), second(3000, false);
  EXPECT_GE(ComparePaired(first, second).p, 0);
  EXPECT_LT(ComparePaired(first, second).p, 1e-12);
  for (size_t i = 0; i < first.size(); ++i) first[i] = i % 2 == 0, second[i] = i % 2 == 1;
  EXPECT_NEAR(ComparePaired(first, second).p, 1, 1e-6);
}

TEST(Wilson, IsThePublishedInterval) {
  // Wilson 1927 by hand for 19 of 20, and the ends.
  const Interval interval = Wilson(19, 20);
  EXPECT_EQ(interval.mean, 0.95);
  EXPECT_NEAR(interval.low, 0.7639, 1e-4);
  EXPECT_NEAR(interval.high, 0.9911, 1e-4);
  EXPECT_EQ(Wilson(20, 20).high, 1);
  EXPECT_NEAR(Wilson(20, 20).low, 0.8389, 1e-4);
  EXPECT_EQ(Wilson(0, 20).low, 0);
  EXPECT_EQ(Wilson(0, 0).high, 0);
}

}  // namespace
}  // namespace ridgefill::eval
