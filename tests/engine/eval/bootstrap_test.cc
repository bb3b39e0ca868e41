#include "engine/eval/bootstrap.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace ridgefill::eval {
namespace {

TEST(Bootstrap, OfOneValueIsThatValue) {
  const double value[] = {0.25};
  const Interval interval = Bootstrap(value);
  EXPECT_EQ(interval.mean, 0.25);
  EXPECT_EQ(interval.low, 0.25);
  EXPECT_EQ(interval.high, 0.25);
  EXPECT_EQ(Bootstrap({}).mean, 0);
}

TEST(Bootstrap, IsNormalForManyValues) {
  std::vector<double> values(200);
  std::iota(values.begin(), values.end(), 0);
  const Interval interval = Bootstrap(values);
  EXPECT_DOUBLE_EQ(interval.mean, 99.5);
  const double half = 1.96 * std::sqrt((200.0 * 200 - 1) / 12 / 200);  // of a uniform's mean
  // 10,000 resamples place a 2.5 % quantile within 2 % of the half width or so; five times that.
  EXPECT_NEAR(interval.low, 99.5 - half, 0.1 * half);
  EXPECT_NEAR(interval.high, 99.5 + half, 0.1 * half);
}

TEST(Bootstrap, DependsOnValuesAndSeedAlone) {
  const double values[] = {1, 2, 4, 8};
  EXPECT_EQ(Bootstrap(values, 500, 3).low, Bootstrap(values, 500, 3).low);
  EXPECT_NE(Bootstrap(values, 501, 3).high + Bootstrap(values, 501, 3).low,
            Bootstrap(values, 501, 4).high + Bootstrap(values, 501, 4).low);
}

}  // namespace
}  // namespace ridgefill::eval
