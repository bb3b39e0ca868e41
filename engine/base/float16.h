// IEEE half precision and bfloat16 as bits, to and from float. Rounding is to nearest, ties to even; a NaN
// stays a NaN (made quiet, its upper payload bits kept); overflow gives infinity. Pure functions, free of
// branches on x86 so that loops over them vectorise; independent of the thread's flush-to-zero setting for
// every normal result.
#pragma once

#include <bit>
#include <cstdint>

namespace ridgefill::base {

inline float BF16ToF32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t F32ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? quiet : rounded);
}

inline float F16ToF32(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = (half & 0x7fffu) << 13;  // the half's fields at the float's places
  const bool is_special = magnitude >= (0x1fu << 23);
  const uint32_t normal = magnitude + ((127u - 15u) << 23);
  const uint32_t special = magnitude | (0xffu << 23) | (magnitude > (0x1fu << 23) ? 0x00400000u : 0u);
  // A subnormal half is m * 2^-24: put m below an explicit 2^-14 and take that 2^-14 away again, exactly.
  const float subnormal = std::bit_cast<float>(magnitude + (113u << 23)) - std::bit_cast<float>(113u << 23);
  const uint32_t finite = magnitude < (1u << 23) ? std::bit_cast<uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(sign | (is_special ? special : finite));
}

inline uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14 adding 0.5 lines the half's ten bits up at the end of the float; the adder rounds to even.
  const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(aligned) - 0x3f000000u;
  const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const bool is_nan = magnitude > 0x7f800000u;
  const bool overflows =
      magnitude >= 0x477ff000u;  // 65520: halfway between the largest half and the next step
  return static_cast<uint16_t>(sign | (is_nan ? nan : overflows ? 0x7c00u : finite));
}

}  // namespace ridgefill::base
