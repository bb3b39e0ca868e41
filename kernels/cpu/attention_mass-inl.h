// What each cached token receives from some rows' attention, in two passes over the blocks of K: the softmax
// of every row, then the probabilities column by column. Included by kernels-inl.h only.
//
// A score does not depend on the rows beside it, so both passes see the same scores; a row's softmax is
// attention's own, and a column's sum is one chain over ascending query rows.

namespace ridgefill::kernels::cpu::RF_ISA {

inline void AttentionSoftmax(const AttentionTask& t, float* peak, float* inverse) {
  const AttentionState s = Prepare(t);
  const bool direct = kDotBf16 || s.n <= kDirectRows;
  ScoreTile tile = {};
  const int64_t blocks = t.positions[t.rows - 1] / kPanel + 1;
  for (int64_t block = 0; block < blocks; ++block) {
    const uint32_t* k = t.cache + t.block_table[block] * t.block_stride;
    if (!direct) PairsToF32(k, t.head_dim / 2, kPanel, s.k);
    for (int first = FirstSeeing(t, s, block); first < s.n; first += kScoreRows) {
      tile.rows = HWY_MIN(s.n - first, kScoreRows);
      if (direct) {
        Score<ActivationStep>(t, s, first, reinterpret_cast<const float*>(k), tile);
      } else {
        Score<F32Step>(t, s, first, s.k, tile);
      }
      MaskAndMax(t, block, first, tile);
      Advance(t.scale * kToBase2, s.peak + first, tile);
      ScoresToWeights(t.scale * kToBase2, s.sum + first * 16, tile);
    }
  }
  for (int i = 0; i < s.n; ++i) {
    peak[i] = s.peak[i];
    inverse[i] = 1.0f / hn::GetLane(hn::SumOfLanes(F32(), hn::Load(F32(), s.sum + i * 16)));
  }
  ReleaseTiles();
}

// Adds query rows [first, first + tile.rows) of the task to the block's columns [64].
template <bool kMaximum>
HWY_INLINE void AddToColumns(const MassTask& m, int first, ScoreTile& tile, float* columns) {
  const F32 d;
  constexpr size_t kVectors = kPanel / kLanes;
  const V factor = hn::Set(d, m.rows.scale * kToBase2);
  V gathered[kVectors];
  for (size_t v = 0; v < kVectors; ++v) gathered[v] = hn::Load(d, columns + v * kLanes);
  for (int r = 0; r < tile.rows; ++r) {
    const int64_t visible = Visible(m.rows, m.block, first + r) - m.min_distance;
    const V peak = hn::Set(d, m.peak[first + r]), inverse = hn::Set(d, m.inverse[first + r]);
    const auto limit = hn::Set(I32(), static_cast<int32_t>(HWY_MAX(visible, int64_t{0})));
    for (size_t v = 0; v < kVectors; ++v) {
      V score = hn::Load(d, tile.scores[r] + v * kLanes);
      if (visible < kPanel) {
        const auto sees = hn::Lt(hn::Iota(I32(), static_cast<int32_t>(v * kLanes)), limit);
        score = hn::IfThenElse(hn::RebindMask(d, sees), score, hn::Set(d, kMasked));
      }
      const V p = hn::Mul(Exp2(hn::MulSub(score, factor, peak)), inverse);
      gathered[v] = kMaximum ? hn::Max(gathered[v], p) : hn::Add(gathered[v], p);
    }
  }
  for (size_t v = 0; v < kVectors; ++v) hn::Store(gathered[v], d, columns + v * kLanes);
}

// Adds all rows of the task, which fit its scratch, to the block's columns.
template <class Step>
HWY_INLINE void MassOfRows(const MassTask& m, const AttentionState& s, const float* k, float* columns) {
  ScoreTile tile = {};
  for (int first = 0; first < s.n; first += kScoreRows) {
    tile.rows = HWY_MIN(s.n - first, kScoreRows);
    Score<Step>(m.rows, s, first, k, tile);
    if (m.maximum) {
      AddToColumns<true>(m, first, tile, columns);
    } else {
      AddToColumns<false>(m, first, tile, columns);
    }
  }
}

inline void AttentionMass(const MassTask& m) {
  const bool direct = kDotBf16 || m.rows.rows * m.rows.group <= kDirectRows;
  const uint32_t* k = m.rows.cache + m.rows.block_table[m.block] * m.rows.block_stride;
  float* scratch = m.rows.scratch;
  float* k_f32 = Take<float>(scratch, kPanel * m.rows.head_dim);
  if (!direct) PairsToF32(k, m.rows.head_dim / 2, kPanel, k_f32);
  AttentionState s;
  s.q = Take<float>(scratch, m.tile_rows * m.rows.group * m.rows.head_dim);
  alignas(64) float columns[kPanel] = {};
  for (int64_t c = 0; c < m.columns; ++c) columns[c] = m.mass[c];
  MassTask part = m;
  for (int64_t r = 0; r < m.rows.rows; r += m.tile_rows) {
    part.rows.rows = HWY_MIN(m.tile_rows, m.rows.rows - r);
    part.rows.positions = m.rows.positions + r;
    part.rows.q = static_cast<const char*>(m.rows.q) + r * m.rows.row_stride * kActivationBytes;
    part.peak = m.peak + r * m.rows.group;
    part.inverse = m.inverse + r * m.rows.group;
    s.n = static_cast<int>(part.rows.rows) * m.rows.group;
    PackQueries(part.rows, s);
    if (direct) {
      MassOfRows<ActivationStep>(part, s, reinterpret_cast<const float*>(k), columns);
    } else {
      MassOfRows<F32Step>(part, s, k_f32, columns);
    }
  }
  for (int64_t c = 0; c < m.columns; ++c) m.mass[c] = columns[c];
  ReleaseTiles();
}

}  // namespace ridgefill::kernels::cpu::RF_ISA
