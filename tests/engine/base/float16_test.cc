#include "engine/base/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ridgefill::base {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The value of a half's bits by its definition.
float ValueOfHalf(uint16_t half) {
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  const float sign = half & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? std::nanf("") : sign * kInfinity;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

TEST(Float16, EveryHalfWidensExactlyAndComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float value = F16ToF32(half), expected = ValueOfHalf(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_EQ(F32ToF16(value), half | 0x200) << bits;  // quiet, payload kept
      continue;
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(expected)) << bits;
    ASSERT_EQ(F32ToF16(value), half) << bits;
  }
}

TEST(Float16, RoundsToNearestEvenBetweenNeighbours) {
  for (uint16_t half = 0; half < 0x7bff; ++half) {
    const float low = ValueOfHalf(half), high = ValueOfHalf(half + 1);
    const float middle = low + (high - low) / 2;
    const uint16_t even = half & 1 ? half + 1 : half;
    ASSERT_EQ(F32ToF16(middle), even) << half;
    ASSERT_EQ(F32ToF16(std::nextafter(middle, 0.0f)), half) << half;
    ASSERT_EQ(F32ToF16(std::nextafter(middle, kInfinity)), half + 1) << half;
    ASSERT_EQ(F32ToF16(-middle), even | 0x8000) << half;
  }
}

TEST(Float16, HandlesTheEnds) {
  EXPECT_EQ(F32ToF16(65519.996f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToF16(3e38f), 0x7c00);
  EXPECT_EQ(F32ToF16(-kInfinity), 0xfc00);
  EXPECT_EQ(F32ToF16(-0.0f), 0x8000);
  EXPECT_EQ(F32ToF16(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(BFloat16, EveryValueWidensAndComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = BF16ToF32(static_cast<uint16_t>(bits));
    ASSERT_EQ(std::bit_cast<uint32_t>(value), bits << 16);
    ASSERT_EQ(F32ToBF16(value), std::isnan(value) ? bits | 0x40 : bits);
  }
}

TEST(BFloat16, RoundsToNearestEven) {
  const auto round = [](uint32_t bits) { return F32ToBF16(std::bit_cast<float>(bits)); };
  EXPECT_EQ(round(0x3f808000), 0x3f80);
  EXPECT_EQ(round(0x3f818000), 0x3f82);
  EXPECT_EQ(round(0x3f807fff), 0x3f80);
  EXPECT_EQ(round(0x3f808001), 0x3f81);
  EXPECT_EQ(round(0x7f7fffff), 0x7f80);  // the largest float is nearer to infinity
  EXPECT_EQ(round(0x00008000), 0x0000);
  EXPECT_EQ(round(0x00018000), 0x0002);
  EXPECT_EQ(round(0x7f800001), 0x7fc0);  // a NaN whose payload is all below the cut stays a NaN
  EXPECT_EQ(round(0xffffffff), 0xffff);
}

}  // namespace
}  // namespace ridgefill::base
