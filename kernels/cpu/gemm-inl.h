// The register-tiled products behind Linear, Gram and attention. Included by kernels-inl.h only.
//
// A micro-kernel holds kTileRows x kTileVectors sums in registers and walks the depth once; every sum is one
// chain over ascending depth. Tails take the same chain with fewer rows, so a row never sees which tile it is
// in.

namespace ridgefill::kernels::cpu::RF_ISA {

inline constexpr int kTileRows = 6;
inline constexpr int kTileVectors = kLanes == 16 ? 4 : 2;  // 24 of 32, or 12 of 16 registers hold sums
inline constexpr int kTileColumns = kTileVectors * static_cast<int>(kLanes);
// Up to here converting a panel to f32 first costs more than converting it on the way, once per tile.
inline constexpr int64_t kDirectRows = 10 * kTileRows;

HWY_INLINE V Low(V pairs) { return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::BitCast(U32(), pairs))); }
HWY_INLINE V High(V pairs) {
  return hn::BitCast(F32(), hn::And(hn::BitCast(U32(), pairs), hn::Set(U32(), 0xffff0000u)));
}

// A step takes kWords words of each row of x and one row of the panel, which has kPerWord columns a word; up
// to kRows rows go together.
struct WordStep {
  static constexpr int kPerWord = 1, kRows = kTileRows;
  static HWY_INLINE V Load(const float* panel, size_t column) { return hn::LoadU(F32(), panel + column); }
};
struct F32Step : WordStep {  // one f32 of x; the panel is f32
  static constexpr int kWords = 1, kDepth = 1;
  static HWY_INLINE V Add(V sum, V x, V panel, int) { return hn::MulAdd(x, panel, sum); }
};
struct HalfStep {  // one f32 of x; the panel is f16
  static constexpr int kPerWord = 2, kWords = 1, kDepth = 1, kRows = kTileRows;
  static HWY_INLINE V Load(const float* panel, size_t column) {
    return hn::PromoteTo(F32(), hn::LoadU(F16(), reinterpret_cast<const hwy::float16_t*>(panel) + column));
  }
  static HWY_INLINE V Add(V sum, V x, V panel, int) { return hn::MulAdd(x, panel, sum); }
};
struct PairStep : WordStep {  // two f32 of x; the panel is bf16 pairs
  static constexpr int kWords = 2, kDepth = 2;
  static HWY_INLINE V Add(V sum, V x, V panel, int word) {
    return hn::MulAdd(x, word == 0 ? Low(panel) : High(panel), sum);
  }
};
struct DotStep : WordStep {  // one bf16 pair of x; the panel is bf16 pairs
  static constexpr int kWords = 1, kDepth = 2;
  static HWY_INLINE V Add(V sum, V x, V panel, int) {
#if RF_DOT_BF16 == 1
    return V{_mm512_dpbf16_ps(sum.raw, (__m512bh)hn::BitCast(I32(), x).raw,
                              (__m512bh)hn::BitCast(I32(), panel).raw)};
#else
    return hn::MulAdd(Low(x), Low(panel), hn::MulAdd(High(x), High(panel), sum));
#endif
  }
};

// What the sums start from.
enum class Start { kZero, kOld, kScaledOld };

// One product of kRows rows with some columns. Row r of x starts x_row * r words after x; a step moves on by
// x_step words and by panel_row words. `sums` is aligned to a vector.
struct Operands {
  const float* x = nullptr;
  size_t x_row = 0;
  size_t x_step = 1;
  const float* panel = nullptr;
  size_t panel_row = 0;
  size_t steps = 0;
  float* sums = nullptr;
  size_t sums_row = 0;
  const float* scale = nullptr;  // [rows], Start::kScaledOld only
};

template <class Step, Start kStart, int kRows, int kVectors>
HWY_NOINLINE void Micro(const Operands& o) {
  const F32 d;
  V sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      sum[r][j] = hn::Zero(d);
      if (kStart != Start::kZero) sum[r][j] = hn::Load(d, o.sums + r * o.sums_row + j * kLanes);
      if (kStart == Start::kScaledOld) sum[r][j] = hn::Mul(sum[r][j], hn::Set(d, o.scale[r]));
    }
  }
  const size_t x_row = o.x_row, x_step = o.x_step, panel_row = o.panel_row;
  const float* x0 = o.x;
  const float* x3 = x0 + 3 * x_row;  // two bases keep all row addresses in one addressing mode
  const float* panel = o.panel;
#pragma GCC unroll 4
  for (size_t step = o.steps; step != 0; --step) {
    V b[kVectors];
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) b[j] = Step::Load(panel, j * kLanes);
#pragma GCC unroll 16
    for (int word = 0; word < Step::kWords; ++word) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const V x = hn::Set(d, LoadWord<float>((r < 3 ? x0 + r * x_row : x3 + (r - 3) * x_row) + word));
#pragma GCC unroll 16
        for (int j = 0; j < kVectors; ++j) sum[r][j] = Step::Add(sum[r][j], x, b[j], word);
      }
    }
    x0 += x_step;
    x3 += x_step;
    panel += panel_row;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) hn::Store(sum[r][j], d, o.sums + r * o.sums_row + j * kLanes);
  }
}

template <class Step, Start kStart, int kVectors>
HWY_INLINE void MicroRows(int rows, const Operands& o) {
  switch (rows) {
    case 1:
      return Micro<Step, kStart, 1, kVectors>(o);
    case 2:
      return Micro<Step, kStart, 2, kVectors>(o);
    case 3:
      return Micro<Step, kStart, 3, kVectors>(o);
    case 4:
      return Micro<Step, kStart, 4, kVectors>(o);
    case 5:
      return Micro<Step, kStart, 5, kVectors>(o);
    default:
      return Micro<Step, kStart, 6, kVectors>(o);
  }
}

}  // namespace ridgefill::kernels::cpu::RF_ISA
#include "kernels/cpu/tiles-inl.h"
namespace ridgefill::kernels::cpu::RF_ISA {

using ActivationStep =  // on panels of bf16 pairs as they lie
    std::conditional_t<kTiles, TileStep, std::conditional_t<kDotBf16, DotStep, PairStep>>;

// One tile of up to Step::kRows rows with `columns` (a multiple of 16) columns.
template <class Step, Start kStart>
HWY_INLINE void MultiplyTile(int rows, int columns, Operands o) {
  constexpr int kTailVectors = 16 / static_cast<int>(kLanes);
  if constexpr (std::is_same_v<Step, TileStep>) {
    MultiplyTiles<kStart>(rows, columns, o);
  } else {
    for (; columns >= kTileColumns; columns -= kTileColumns) {
      MicroRows<Step, kStart, kTileVectors>(rows, o);
      o.panel += kTileColumns / Step::kPerWord;
      o.sums += kTileColumns;
    }
    for (; columns > 0; columns -= 16) {
      MicroRows<Step, kStart, kTailVectors>(rows, o);
      o.panel += 16 / Step::kPerWord;
      o.sums += 16;
    }
  }
}

// Rows of bf16 pairs [words][columns] to f32 [2 * words][columns]; columns is a multiple of 16.
HWY_INLINE void PairsToF32(const uint32_t* pairs, int64_t words, int64_t columns, float* out) {
  const U32 du;
  for (int64_t w = 0; w < words; ++w) {
    for (int64_t c = 0; c < columns; c += static_cast<int64_t>(kLanes)) {
      const V both = hn::BitCast(F32(), hn::LoadU(du, pairs + w * columns + c));
      hn::Store(Low(both), F32(), out + 2 * w * columns + c);
      hn::Store(High(both), F32(), out + (2 * w + 1) * columns + c);
    }
  }
}

// Halves to f32; `count` is a multiple of a vector.
HWY_INLINE void HalvesToF32(const uint32_t* halves, int64_t count, float* out) {
  const float* from = reinterpret_cast<const float*>(halves);
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(kLanes)) {
    hn::Store(HalfStep::Load(from, static_cast<size_t>(i)), F32(), out + i);
  }
}

// Columns [0, columns) of some rows, padded with zeros to a panel.
HWY_INLINE void CopyPanel(const float* from, int64_t stride, int64_t depth, int64_t columns, float* out) {
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t c = 0; c < kPanel; ++c) out[k * kPanel + c] = c < columns ? from[k * stride + c] : 0.0f;
  }
}

// Writes `rows` finished rows of sums, from task row `first` on.
template <typename T, bool kBias, bool kAccumulate>
HWY_INLINE void WriteRows(const GemmTask& t, int64_t first, int rows, const float* sums) {
  const F32 d;
  T* y = static_cast<T*>(t.y) + first * t.y_stride;
  for (int r = 0; r < rows; ++r, y += t.y_stride, sums += kPanel) {
    int64_t c = 0;
    for (; c + static_cast<int64_t>(kLanes) <= t.columns; c += static_cast<int64_t>(kLanes)) {
      V v = hn::Load(d, sums + c);
      if (kBias) v = hn::Add(v, hn::LoadU(d, t.bias + c));
      if (kAccumulate) v = hn::Add(v, LoadAsF32(y + c));
      StoreFromF32(v, y + c);
    }
    for (; c < t.columns; ++c) {
      float v = sums[c];
      if (kBias) v += t.bias[c];
      if (kAccumulate) v += ScalarF32(y[c]);
      ScalarStore(v, y + c);
    }
  }
}

template <typename T>
HWY_INLINE void WriteRows(const GemmTask& t, int64_t first, int rows, const float* sums) {
  if (t.bias != nullptr) {
    return t.accumulate ? WriteRows<T, true, true>(t, first, rows, sums)
                        : WriteRows<T, true, false>(t, first, rows, sums);
  }
  return t.accumulate ? WriteRows<T, false, true>(t, first, rows, sums)
                      : WriteRows<T, false, false>(t, first, rows, sums);
}

// All rows of the task over depth [begin, begin + o.steps); `o` brings panel and depth.
template <class Step>
HWY_INLINE void MultiplyRows(const GemmTask& t, int64_t begin, Operands o) {
  const bool first_block = begin == 0, last_block = begin + static_cast<int64_t>(o.steps) == t.depth;
  constexpr int kDepthPerWord = Step::kDepth / Step::kWords;
  o.x = static_cast<const float*>(t.x) + begin * t.x_depth_stride / kDepthPerWord;
  o.x_row = static_cast<size_t>(t.x_row_stride) / kDepthPerWord;
  o.x_step = static_cast<size_t>(t.x_depth_stride) * Step::kWords;
  o.panel_row = kPanel / Step::kPerWord;
  o.sums = t.scratch + kDepthBlock * kPanel;
  o.sums_row = kPanel;
  o.steps /= Step::kDepth;
  for (int64_t row = 0; row < t.rows; row += Step::kRows) {
    const int rows = static_cast<int>(HWY_MIN(t.rows - row, static_cast<int64_t>(Step::kRows)));
    if (first_block) {
      MultiplyTile<Step, Start::kZero>(rows, kPanel, o);
    } else {
      MultiplyTile<Step, Start::kOld>(rows, kPanel, o);
    }
    if (last_block) {
      t.y_is_bf16 ? WriteRows<uint16_t>(t, row, rows, o.sums) : WriteRows<float>(t, row, rows, o.sums);
    }
    o.x += Step::kRows * o.x_row;
    if (!first_block || !last_block)
      o.sums += Step::kRows * kPanel;  // else the same few stay in the L1 cache
  }
}

inline void Gemm(const GemmTask& t) {
  const bool direct = t.rows <= kDirectRows;
  for (int64_t begin = 0; begin < t.depth; begin += kDepthBlock) {
    const int64_t depth = HWY_MIN(t.depth - begin, static_cast<int64_t>(kDepthBlock));
    const uint32_t* panel = t.panel + begin / 2 * kPanel;
    Operands o;
    o.steps = static_cast<size_t>(depth);
    o.panel = reinterpret_cast<const float*>(panel);
    if (kDotBf16 && t.form == PanelForm::kBf16Pairs) {
      MultiplyRows<ActivationStep>(t, begin, o);
    } else if (direct && t.form == PanelForm::kBf16Pairs) {
      MultiplyRows<PairStep>(t, begin, o);
    } else if (direct && t.form == PanelForm::kF16) {
      MultiplyRows<HalfStep>(t, begin, o);
    } else {
      if (t.form == PanelForm::kF32Rows) {
        CopyPanel(t.f32 + begin * t.f32_stride, t.f32_stride, depth, t.columns, t.scratch);
      } else if (t.form == PanelForm::kF16) {
        HalvesToF32(panel, depth * kPanel, t.scratch);
      } else {
        PairsToF32(panel, depth / 2, kPanel, t.scratch);
      }
      o.panel = t.scratch;
      MultiplyRows<F32Step>(t, begin, o);
    }
  }
  ReleaseTiles();
}

}  // namespace ridgefill::kernels::cpu::RF_ISA
