// Blocked causal attention with an online softmax, and RoPE with the write into the cache. Included by
// kernels-inl.h only.
//
// A task packs `rows x group` query rows that share one KV head. It walks the cache blocks in ascending
// order; for each block K and V become f32 once, then every tile of rows adds its part. A row's running
// maximum, sum and output change only by what its own visible tokens bring: a masked token adds exactly
// nothing.

namespace ridgefill::kernels::cpu::RF_ISA {

inline constexpr float kMasked = -__builtin_inff();
inline constexpr float kToBase2 = 1.44269504088896340736f;  // log2(e)
// Rows whose softmax is done together, between their two products: so many that the latency of a row's
// maximum hides behind the other rows.
inline constexpr int kScoreRows = kTiles ? TileStep::kRows : 4 * kTileRows;

// The state of one task, laid out in its scratch.
struct AttentionState {
  int n = 0;              // rows * group
  float* k = nullptr;     // [head_dim][64] f32
  float* v = nullptr;     // [64][v_columns] f32
  float* q = nullptr;     // [n][head_dim] activations
  float* out = nullptr;   // [n][v_columns]
  float* sum = nullptr;   // [n][16]: partial sums of the softmax, one per lane
  float* peak = nullptr;  // [n]: running maximum, times scale * log2(e)
};

template <typename T>
T* Take(float*& scratch, int64_t floats) {
  T* taken = reinterpret_cast<T*>(scratch);
  scratch += (floats + 15) / 16 * 16;
  return taken;
}

// Each row's heads of the group, one after the other.
HWY_INLINE void PackQueries(const AttentionTask& t, const AttentionState& s) {
  const int64_t group_bytes = static_cast<int64_t>(t.group) * t.head_dim * kActivationBytes;
  for (int64_t r = 0; r < t.rows; ++r) {
    __builtin_memcpy(reinterpret_cast<char*>(s.q) + r * group_bytes,
                     static_cast<const char*>(t.q) + r * t.row_stride * kActivationBytes, group_bytes);
  }
}

HWY_INLINE AttentionState Prepare(const AttentionTask& t) {
  AttentionState s;
  float* scratch = t.scratch;
  s.n = static_cast<int>(t.rows) * t.group;
  s.k = Take<float>(scratch, kPanel * t.head_dim);
  s.v = Take<float>(scratch, kPanel * t.v_columns);
  s.out = Take<float>(scratch, static_cast<int64_t>(s.n) * t.v_columns);
  s.sum = Take<float>(scratch, static_cast<int64_t>(s.n) * 16);
  s.q = Take<float>(scratch, static_cast<int64_t>(s.n) * t.head_dim);
  s.peak = Take<float>(scratch, s.n + 16);  // read in whole vectors
  PackQueries(t, s);
  for (int64_t i = 0; i < static_cast<int64_t>(s.n) * t.v_columns; ++i) s.out[i] = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(s.n) * 16; ++i) s.sum[i] = 0;
  for (int i = 0; i < s.n + 16; ++i) s.peak[i] = kMasked;
  return s;
}

// Some rows' scores of one block, and what turns them into weights.
struct ScoreTile {
  alignas(64) float scores[kScoreRows][kPanel];  // then the weights: f32, or bf16 pairs in a row's first half
  alignas(64) float top[32];                     // new maximum of each row
  alignas(64) float rescale[32];                 // factor for what a row has gathered so far
  int rows = 0;
};

// Tokens of this block that query row `i` sees: (-inf, 64].
HWY_INLINE int64_t Visible(const AttentionTask& t, int64_t block, int i) {
  return t.positions[i / t.group] + 1 - block * kPanel;
}

// First row of the first tile that sees anything of this block.
HWY_INLINE int FirstSeeing(const AttentionTask& t, const AttentionState& s, int64_t block) {
  int first = 0;
  while (Visible(t, block, HWY_MIN(first + ActivationStep::kRows, s.n) - 1) <= 0)
    first += ActivationStep::kRows;
  return first;
}

HWY_INLINE void MaskAndMax(const AttentionTask& t, int64_t block, int first, ScoreTile& tile) {
  const F32 d;
  for (int r = 0; r < tile.rows; ++r) {
    const int64_t visible = Visible(t, block, first + r);
    V top = hn::Set(d, kMasked);
    for (size_t c = 0; c < kPanel; c += kLanes) {
      V s = hn::Load(d, tile.scores[r] + c);
      if (visible < kPanel) {
        const auto column = hn::Iota(I32(), static_cast<int32_t>(c));
        const auto sees = hn::Lt(column, hn::Set(I32(), static_cast<int32_t>(HWY_MAX(visible, int64_t{0}))));
        s = hn::IfThenElse(hn::RebindMask(d, sees), s, hn::Set(d, kMasked));
        hn::Store(s, d, tile.scores[r] + c);
      }
      top = hn::Max(top, s);
    }
    tile.top[r] = hn::GetLane(hn::MaxOfLanes(d, top));
  }
}

// Moves the running maxima on and gives the factor for the old output.
HWY_INLINE void Advance(float scale, float* peak, ScoreTile& tile) {
  const F32 d;
  for (int r = 0; r < tile.rows; r += static_cast<int>(kLanes)) {
    const V before = hn::LoadU(d, peak + r);
    const V after = hn::Max(before, hn::Mul(hn::Load(d, tile.top + r), hn::Set(d, scale)));
    hn::Store(after, d, tile.top + r);
    hn::Store(Exp2(hn::Sub(before, after)), d, tile.rescale + r);
  }
  for (int r = 0; r < tile.rows; ++r) peak[r] = tile.top[r];
}

HWY_INLINE void ScoresToWeights(float scale, float* sum, ScoreTile& tile) {
  const F32 d;
  for (int r = 0; r < tile.rows; ++r) {
    const V top = hn::Set(d, tile.top[r]), factor = hn::Set(d, scale);
    V total = hn::Mul(hn::Load(d, sum + r * 16), hn::Set(d, tile.rescale[r]));
    for (size_t c = 0; c < kPanel; c += kLanes) {
      const V weight = Exp2(hn::MulSub(hn::Load(d, tile.scores[r] + c), factor, top));
      total = hn::Add(total, weight);
      if (kDotBf16) {
        StoreFromF32(weight, reinterpret_cast<uint16_t*>(tile.scores[r]) + c);
      } else {
        hn::Store(weight, d, tile.scores[r] + c);
      }
    }
    hn::Store(total, d, sum + r * 16);
  }
}

// Scores of rows [first, first + tile.rows) with one block's tokens.
template <class Step>
HWY_INLINE void Score(const AttentionTask& t, const AttentionState& s, int first, const float* k,
                      ScoreTile& tile) {
  Operands o;
  o.x_row = static_cast<size_t>(t.head_dim * Step::kWords / Step::kDepth);
  o.x_step = Step::kWords;
  o.panel = k;
  o.panel_row = kPanel;
  o.steps = static_cast<size_t>(t.head_dim / Step::kDepth);
  o.sums_row = kPanel;
  for (int r = 0; r < tile.rows; r += Step::kRows) {
    o.x = s.q + static_cast<size_t>(first + r) * o.x_row;
    o.sums = tile.scores[r];
    MultiplyTile<Step, Start::kZero>(HWY_MIN(tile.rows - r, Step::kRows), kPanel, o);
  }
}

// Adds the weighted V of one block to the same rows' outputs.
template <class Step>
HWY_INLINE void Gather(const AttentionTask& t, const AttentionState& s, int64_t block, int first,
                       const float* v, const ScoreTile& tile) {
  Operands o;
  o.x_row = kPanel;
  o.x_step = Step::kWords;
  o.panel = v;
  o.panel_row = static_cast<size_t>(t.v_columns);
  o.sums_row = static_cast<size_t>(t.v_columns);
  for (int r = 0; r < tile.rows; r += Step::kRows) {
    const int rows = HWY_MIN(tile.rows - r, Step::kRows);
    const int64_t tokens =  // tiles take whole groups of tokens, the same ones whatever rows are together
        kTiles ? kPanel : HWY_MIN(Visible(t, block, first + r + rows - 1), static_cast<int64_t>(kPanel));
    o.x = tile.scores[r];
    o.steps = static_cast<size_t>((tokens + Step::kDepth - 1) / Step::kDepth);
    o.sums = s.out + static_cast<int64_t>(first + r) * t.v_columns;
    o.scale = tile.rescale + r;
    MultiplyTile<Step, Start::kScaledOld>(rows, t.v_columns, o);
  }
}

// Adds one block to rows [first, s.n) of the task; each of their tiles sees some of it.
template <class Step>
HWY_INLINE void AddBlock(const AttentionTask& t, const AttentionState& s, int64_t block, int first,
                         const float* k, const float* v, ScoreTile& tile) {
  const float scale = t.scale * kToBase2;
  for (; first < s.n; first += kScoreRows) {
    tile.rows = HWY_MIN(s.n - first, kScoreRows);
    Score<Step>(t, s, first, k, tile);
    MaskAndMax(t, block, first, tile);
    Advance(scale, s.peak + first, tile);
    ScoresToWeights(scale, s.sum + first * 16, tile);
    Gather<Step>(t, s, block, first, v, tile);
  }
}

// V pairs of a block that the task sees only in part: what it does not see but multiplies with zero (the
// second half of the last pair; all the rest with tiles) may hold anything, and zero times anything is not
// always zero.
HWY_INLINE const uint32_t* CleanUnseen(const AttentionTask& t, const uint32_t* v, int64_t tokens,
                                       float* copy) {
  if (tokens >= kPanel || (!kTiles && tokens % 2 == 0)) return v;
  uint32_t* clean = reinterpret_cast<uint32_t*>(copy);
  const int64_t whole = tokens / 2 * t.v_columns, end = kTiles ? kPanel / 2 * t.v_columns : 0;
  __builtin_memcpy(clean, v, static_cast<size_t>(whole) * 4);
  int64_t c = whole;
  for (; tokens % 2 != 0 && c < whole + t.v_columns; ++c) clean[c] = v[c] & 0xffffu;
  for (; c < end; ++c) clean[c] = 0;
  return clean;
}

HWY_INLINE void AttendBlock(const AttentionTask& t, const AttentionState& s, int64_t block, ScoreTile& tile) {
  const bool direct = kDotBf16 || s.n <= kDirectRows;
  const uint32_t* k = t.cache + t.block_table[block] * t.block_stride;
  const uint32_t* v = k + static_cast<int64_t>(t.head_dim / 2) * kPanel;
  const int64_t tokens = HWY_MIN(Visible(t, block, s.n - 1), static_cast<int64_t>(kPanel));
  if (direct) {
    v = CleanUnseen(t, v, tokens, s.v);
  } else {
    PairsToF32(k, t.head_dim / 2, kPanel, s.k);
    PairsToF32(v, (tokens + 1) / 2, t.v_columns, s.v);
  }
  const int first = FirstSeeing(t, s, block);
  if (direct) {
    AddBlock<ActivationStep>(t, s, block, first, reinterpret_cast<const float*>(k),
                             reinterpret_cast<const float*>(v), tile);
  } else {
    AddBlock<F32Step>(t, s, block, first, s.k, s.v, tile);
  }
}

inline void Attention(const AttentionTask& t) {
  const F32 d;
  const AttentionState s = Prepare(t);
  ScoreTile tile = {};
  const int64_t blocks = t.positions[t.rows - 1] / kPanel + 1;
  for (int64_t block = 0; block < blocks; ++block) AttendBlock(t, s, block, tile);
  for (int i = 0; i < s.n; ++i) {
    V total = hn::Load(d, s.sum + i * 16);
    const float inverse = 1.0f / hn::GetLane(hn::SumOfLanes(d, total));
    Activation* out = static_cast<Activation*>(t.out) + i / t.group * t.row_stride + i % t.group * t.head_dim;
    const float* from = s.out + static_cast<int64_t>(i) * t.v_columns;
    for (int c = 0; c < t.head_dim; ++c) ScalarStore(from[c] * inverse, out + c);
  }
  ReleaseTiles();
}

// Turns one head: pair i is elements i and i + head_dim / 2. `out` may be `in`.
template <typename In, typename Out>
HWY_INLINE void TurnHead(const RopeTask& t, const In* in, Out* out) {
  const F32 d;
  const int half = t.head_dim / 2;
  int i = 0;
  for (; i + static_cast<int>(kLanes) <= half; i += static_cast<int>(kLanes)) {
    const V a = LoadAsF32(in + i), b = LoadAsF32(in + half + i);
    const V c = hn::LoadU(d, t.cosine + i), s = hn::LoadU(d, t.sine + i);
    StoreFromF32(hn::NegMulAdd(b, s, hn::Mul(a, c)), out + i);
    StoreFromF32(hn::MulAdd(a, s, hn::Mul(b, c)), out + half + i);
  }
  for (; i < half; ++i) {
    const float a = ScalarF32(in[i]), b = ScalarF32(in[half + i]);
    ScalarStore(__builtin_fmaf(-b, t.sine[i], a * t.cosine[i]), out + i);
    ScalarStore(__builtin_fmaf(a, t.sine[i], b * t.cosine[i]), out + half + i);
  }
}

template <typename T>
HWY_INLINE void WriteKv(const RopeTask& t, const T* kv) {
  for (int h = 0; h < t.kv_heads; ++h) {
    const T* k = kv + h * t.head_dim;
    const T* v = k + t.kv_heads * t.head_dim;
    uint16_t* turned = reinterpret_cast<uint16_t*>(t.scratch);
    TurnHead(t, k, turned);
    uint32_t* k_panel = t.cache + h * t.head_stride;
    for (int i = 0; i < t.head_dim / 2; ++i)
      k_panel[i * kPanel + t.slot] = LoadWord<uint32_t>(turned + 2 * i);
    // Neighbouring tokens share a word and may be written by different threads: halves are stored alone.
    uint16_t* v_panel = reinterpret_cast<uint16_t*>(k_panel + static_cast<int64_t>(t.head_dim / 2) * kPanel) +
                        (t.slot / 2) * 2 * t.v_columns + t.slot % 2;
    for (int c = 0; c < t.head_dim; ++c) v_panel[2 * c] = ScalarBf16(ScalarF32(v[c]));
  }
}

inline void Rope(const RopeTask& t) {
  Activation* q = static_cast<Activation*>(t.q);
  for (int h = 0; q != nullptr && h < t.q_heads; ++h, q += t.head_dim) TurnHead(t, q, q);
  if (t.kv_is_f32) {
    WriteKv(t, static_cast<const float*>(t.kv));
  } else {
    WriteKv(t, static_cast<const uint16_t*>(t.kv));
  }
}

}  // namespace ridgefill::kernels::cpu::RF_ISA
