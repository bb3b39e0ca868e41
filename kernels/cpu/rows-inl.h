// Norms, SwiGLU and casts. Included by kernels-inl.h only.
//
// Reductions keep one partial sum per lane in an order that depends on the width alone.

namespace ridgefill::kernels::cpu::RF_ISA {

HWY_INLINE float SumOfSquares(const float* x, int64_t d) {
  const F32 df;
  V sum0 = hn::Zero(df), sum1 = hn::Zero(df);
  constexpr int64_t kStep = static_cast<int64_t>(kLanes);
  int64_t i = 0;
  for (; i + 2 * kStep <= d; i += 2 * kStep) {
    const V a = hn::LoadU(df, x + i), b = hn::LoadU(df, x + i + kStep);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  float sum = hn::GetLane(hn::SumOfLanes(df, hn::Add(sum0, sum1)));
  for (; i < d; ++i) sum = __builtin_fmaf(x[i], x[i], sum);
  return sum;
}

template <typename T>
HWY_INLINE void RmsNormRow(const RmsNormTask& t, const float* x, T* out) {
  const F32 df;
  const float inverse = 1.0f / __builtin_sqrtf(SumOfSquares(x, t.d) / static_cast<float>(t.d) + t.eps);
  const V scale = hn::Set(df, inverse);
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kLanes) <= t.d; i += static_cast<int64_t>(kLanes)) {
    StoreFromF32(hn::Mul(hn::Mul(hn::LoadU(df, x + i), scale), hn::LoadU(df, t.weight + i)), out + i);
  }
  for (; i < t.d; ++i) ScalarStore(x[i] * inverse * t.weight[i], out + i);
}

inline void RmsNorm(const RmsNormTask& t) {
  for (int64_t r = 0; r < t.rows; ++r) {
    if (t.out_is_bf16) {
      RmsNormRow(t, t.x + r * t.d, static_cast<uint16_t*>(t.out) + r * t.d);
    } else {
      RmsNormRow(t, t.x + r * t.d, static_cast<float*>(t.out) + r * t.d);
    }
  }
}

inline float RowNorm(const float* x, int64_t d) { return __builtin_sqrtf(SumOfSquares(x, d)); }

HWY_INLINE V Silu(V gate) {
  const F32 d;
  const V x = hn::Min(hn::Mul(gate, hn::Set(d, -1.44269504088896340736f)), hn::Set(d, 126.0f));
  return hn::Div(gate, hn::Add(hn::Set(d, 1.0f), Exp2(x)));
}

inline void SwiGlu(const void* gate, const void* up, void* out, int64_t n) {
  const Activation* g = static_cast<const Activation*>(gate);
  const Activation* u = static_cast<const Activation*>(up);
  Activation* y = static_cast<Activation*>(out);
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kLanes) <= n; i += static_cast<int64_t>(kLanes)) {
    StoreFromF32(hn::Mul(Silu(LoadAsF32(g + i)), LoadAsF32(u + i)), y + i);
  }
  for (; i < n; ++i) {
    const float silu = hn::GetLane(Silu(hn::Set(F32(), ScalarF32(g[i]))));
    ScalarStore(silu * ScalarF32(u[i]), y + i);
  }
}

template <typename In, typename Out>
HWY_INLINE void CastElements(const void* x, void* out, int64_t n) {
  const In* from = static_cast<const In*>(x);
  Out* to = static_cast<Out*>(out);
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kLanes) <= n; i += static_cast<int64_t>(kLanes)) {
    StoreFromF32(LoadAsF32(from + i), to + i);
  }
  for (; i < n; ++i) ScalarStore(ScalarF32(from[i]), to + i);
}

inline void Cast(const void* x, bool x_is_bf16, void* out, bool out_is_bf16, int64_t n) {
  if (x_is_bf16) {
    return out_is_bf16 ? CastElements<uint16_t, uint16_t>(x, out, n)
                       : CastElements<uint16_t, float>(x, out, n);
  }
  return out_is_bf16 ? CastElements<float, uint16_t>(x, out, n) : CastElements<float, float>(x, out, n);
}

}  // namespace ridgefill::kernels::cpu::RF_ISA
