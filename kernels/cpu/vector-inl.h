// Vectors of this ISA: loads and stores of f32 and bf16, exp2. Included by kernels-inl.h only.
#define HWY_COMPILE_ONLY_STATIC
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernel_table.h"

namespace ridgefill::kernels::cpu::RF_ISA {

namespace hn = hwy::HWY_NAMESPACE;
using F32 = hn::ScalableTag<float>;
using U32 = hn::ScalableTag<uint32_t>;
using I32 = hn::ScalableTag<int32_t>;
using U16 = hn::Rebind<uint16_t, F32>;
using F16 = hn::Rebind<hwy::float16_t, F32>;
using V = hn::Vec<F32>;
inline constexpr size_t kLanes = HWY_MAX_BYTES / sizeof(float);

template <typename T>
HWY_INLINE T LoadWord(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof(T));
  return value;
}

HWY_INLINE V LoadAsF32(const float* from) { return hn::LoadU(F32(), from); }
HWY_INLINE V LoadAsF32(const uint16_t* from) {
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), from))));
}

// Nearest even, NaN kept quiet: what base::F32ToBF16 does.
HWY_INLINE hn::Vec<U32> Bf16Bits(V v) {
  const U32 du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
}
HWY_INLINE uint16_t ScalarBf16(float value) {
  const uint32_t bits = LoadWord<uint32_t>(&value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
HWY_INLINE float ScalarF32(float value) { return value; }
HWY_INLINE float ScalarF32(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  return LoadWord<float>(&bits);
}

HWY_INLINE void StoreFromF32(V v, float* to) { hn::StoreU(v, F32(), to); }
HWY_INLINE void StoreFromF32(V v, uint16_t* to) {
#if RF_DOT_BF16 == 1 || RF_DOT_BF16 == 3
  constexpr int kSubnormal = 0x20;  // the instruction takes them for zero
  if (HWY_LIKELY(_mm512_fpclass_ps_mask(v.raw, kSubnormal) == 0)) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(v.raw));
    return;
  }
#endif
  hn::StoreU(hn::DemoteTo(U16(), hn::BitCast(I32(), Bf16Bits(v))), U16(), to);
}
HWY_INLINE void ScalarStore(float value, float* to) { *to = value; }
HWY_INLINE void ScalarStore(float value, uint16_t* to) { *to = ScalarBf16(value); }

// 2^x for x <= 127: relative error below 3e-7, exactly 1 at 0, exactly 0 below -126 and for NaN.
HWY_INLINE V Exp2(V x) {
  const F32 d;
  const auto alive = hn::Ge(x, hn::Set(d, -126.0f));  // no subnormal results: they cost hundreds of cycles
  const V n = hn::Round(x);
  const V f = hn::Sub(x, n);  // [-0.5, 0.5]
  // Relative minimax of degree 5 with the constant held at 1: error below 1e-7.
  V p = hn::Set(d, 1.326472726e-3f);
  p = hn::MulAdd(p, f, hn::Set(d, 9.671512700e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550733744e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.402224208e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931469776e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
#if HWY_TARGET <= HWY_AVX3
  return V{_mm512_maskz_scalef_ps(alive.raw, p.raw, n.raw)};
#else
  const auto exponent = hn::Add(hn::ConvertTo(I32(), n), hn::Set(I32(), 127));
  return hn::IfThenElseZero(alive, hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(exponent))));
#endif
}

}  // namespace ridgefill::kernels::cpu::RF_ISA
