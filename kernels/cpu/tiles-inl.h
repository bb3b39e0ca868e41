// AMX: products of 16 x 16 sums with 32 values of depth at once. Included by gemm-inl.h only.
//
// The panels are the second operand as they lie: 16 of their words in a row are one line of a tile.
//
// A sum takes depth in groups of 32: within a group even and odd values are chains of their own from zero,
// which are added to each other and then to the sum. That is what TDPBF16PS computes (checked on the machine:
// the emulation has its bits but for subnormals, which the instruction takes for zero), and it does not
// depend on the tile that a row falls into. Depth short of a group is filled up with zeros, which add
// nothing.

namespace ridgefill::kernels::cpu::RF_ISA {

struct TileStep {  // a group: 16 bf16 pairs of x
  static constexpr int kWords = 1, kDepth = 2, kPerWord = 1, kRows = 32;
};
inline constexpr int kGroupWords = 16;
inline constexpr int kSide = 16;  // rows and columns of a tile of sums

#if RF_DOT_BF16 == 3

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Shapes the eight tiles for products of `rows` rows: sums 0 to 3 (two of columns, then the same for the next
// 16 rows), x in 4 and 5, the panel in 6 and 7. The last kernel call of a task must release them: whoever
// holds tiles pays for them at every context switch.
HWY_INLINE int& RowsShapedFor() {
  static thread_local int rows = 0;  // 0: not at all
  return rows;
}
HWY_INLINE void ShapeTiles(int rows) {
  if (RowsShapedFor() == rows) return;
  RowsShapedFor() = rows;
  TileConfig c;
  const uint8_t upper = static_cast<uint8_t>(HWY_MIN(rows, kSide));
  const uint8_t lower = static_cast<uint8_t>(HWY_MAX(rows - kSide, 1));
  const uint8_t tile_rows[8] = {upper, upper, lower, lower, upper, lower, kSide, kSide};
  for (int i = 0; i < 8; ++i) {
    c.row_bytes[i] = 64;
    c.rows[i] = tile_rows[i];
  }
  // GCC 12's intrinsic says that it reads 8 of the 64 bytes.
  __asm__ volatile("ldtilecfg %0" : : "m"(c));
}
HWY_INLINE void ReleaseTiles() {
  if (RowsShapedFor() == 0) return;
  RowsShapedFor() = 0;
  _tile_release();
}

// Sums of up to 32 rows and 16 or 32 columns over whole groups; kLower: more than 16 rows. Never inlined:
// loads of tiles do not tell the compiler what they read, so all that was stored before must be in memory.
template <bool kLower, bool kWide, bool kFromZero>
HWY_NOINLINE void TileMicro(const Operands& o) {
  __asm__ volatile("" : : : "memory");
  const size_t x_bytes = o.x_row * 4, panel_bytes = o.panel_row * 4, sums_bytes = o.sums_row * 4;
  float* lower_sums = o.sums + kSide * o.sums_row;
  if (kFromZero) {
    _tile_zero(0);
    if (kWide) _tile_zero(1);
    if (kLower) _tile_zero(2);
    if (kLower && kWide) _tile_zero(3);
  } else {
    _tile_loadd(0, o.sums, sums_bytes);
    if (kWide) _tile_loadd(1, o.sums + kSide, sums_bytes);
    if (kLower) _tile_loadd(2, lower_sums, sums_bytes);
    if (kLower && kWide) _tile_loadd(3, lower_sums + kSide, sums_bytes);
  }
  const float *x = o.x, *lower_x = x + kSide * o.x_row, *panel = o.panel;
  for (size_t step = 0; step < o.steps; step += kGroupWords) {
    _tile_loadd(4, x, x_bytes);
    _tile_loadd(6, panel, panel_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if (kWide) {
      _tile_loadd(7, panel + kSide, panel_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (kLower) {
      _tile_loadd(5, lower_x, x_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if (kWide) _tile_dpbf16ps(3, 5, 7);
    }
    x += kGroupWords;
    lower_x += kGroupWords;
    panel += kGroupWords * o.panel_row;
  }
  _tile_stored(0, o.sums, sums_bytes);
  if (kWide) _tile_stored(1, o.sums + kSide, sums_bytes);
  if (kLower) _tile_stored(2, lower_sums, sums_bytes);
  if (kLower && kWide) _tile_stored(3, lower_sums + kSide, sums_bytes);
}

template <bool kWide, bool kFromZero>
HWY_INLINE void MultiplyGroups(int rows, const Operands& o) {
  ShapeTiles(rows);
  rows > kSide ? TileMicro<true, kWide, kFromZero>(o) : TileMicro<false, kWide, kFromZero>(o);
}

#else  // the same, spelt out

HWY_INLINE void ReleaseTiles() {}

template <bool kWide, bool kFromZero>
HWY_INLINE void MultiplyGroups(int rows, const Operands& o) {
  const F32 d;
  for (int r = 0; r < rows; ++r) {
    for (size_t c = 0; c < (kWide ? 2 : 1) * static_cast<size_t>(kSide); c += kLanes) {
      float* sums = o.sums + r * o.sums_row + c;
      V sum = kFromZero ? hn::Zero(d) : hn::Load(d, sums);
      for (size_t step = 0; step < o.steps; step += kGroupWords) {
        V even = hn::Zero(d), odd = hn::Zero(d);
        for (size_t k = step; k < step + kGroupWords; ++k) {
          const V x = hn::Set(d, LoadWord<float>(o.x + r * o.x_row + k));
          const V panel = hn::LoadU(d, o.panel + k * o.panel_row + c);
          even = hn::MulAdd(Low(x), Low(panel), even);
          odd = hn::MulAdd(High(x), High(panel), odd);
        }
        sum = hn::Add(sum, hn::Add(even, odd));
      }
      hn::Store(sum, d, sums);
    }
  }
}

#endif

// Depth beyond the last whole group, from copies that end in zeros.
template <bool kWide>
HWY_NOINLINE void MultiplyLastGroup(int rows, Operands o) {
  alignas(64) float x[2 * kSide][kGroupWords] = {};
  alignas(64) float panel[kGroupWords][2 * kSide] = {};
  const size_t done = o.steps / kGroupWords * kGroupWords, left = o.steps - done;
  for (int r = 0; r < rows; ++r) __builtin_memcpy(x[r], o.x + r * o.x_row + done, left * 4);
  for (size_t k = 0; k < left; ++k)
    __builtin_memcpy(panel[k], o.panel + (done + k) * o.panel_row, (kWide ? 2 : 1) * kSide * 4);
  o.x = x[0];
  o.x_row = kGroupWords;
  o.panel = panel[0];
  o.panel_row = 2 * kSide;
  o.steps = kGroupWords;
  MultiplyGroups<kWide, false>(rows, o);
}

template <bool kWide, bool kFromZero>
HWY_INLINE void MultiplyTileColumns(int rows, const Operands& o) {
  Operands whole = o;
  whole.steps = o.steps / kGroupWords * kGroupWords;
  MultiplyGroups<kWide, kFromZero>(rows, whole);
  if (whole.steps != o.steps) MultiplyLastGroup<kWide>(rows, o);
}

// As MultiplyTile of the other steps, with up to 32 rows.
template <Start kStart>
HWY_INLINE void MultiplyTiles(int rows, int columns, Operands o) {
  if (kStart == Start::kScaledOld) {
    for (int r = 0; r < rows; ++r) {
      if (o.scale[r] == 1.0f) continue;  // most rows, once they have met their maximum
      const V scale = hn::Set(F32(), o.scale[r]);
      for (int c = 0; c < columns; c += static_cast<int>(kLanes)) {
        float* sums = o.sums + r * o.sums_row + c;
        hn::Store(hn::Mul(hn::Load(F32(), sums), scale), F32(), sums);
      }
    }
  }
  constexpr bool kFromZero = kStart == Start::kZero;
  for (; columns >= 2 * kSide; columns -= 2 * kSide) {
    MultiplyTileColumns<true, kFromZero>(rows, o);
    o.panel += 2 * kSide;
    o.sums += 2 * kSide;
  }
  if (columns > 0) MultiplyTileColumns<false, kFromZero>(rows, o);
}

}  // namespace ridgefill::kernels::cpu::RF_ISA
