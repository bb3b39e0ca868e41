// What one instruction set brings: a table of plain functions over raw memory, one table per ISA.
//
// kernels-inl.h is compiled once per ISA with its own -m flags; nothing but these tables leaves those files.
// A backend holds one table, so several backends of different ISAs live in one process (tests compare them).
//
// Panels. Every second operand of a product is a *panel*: kPanel columns over some depth `k`, 16 bits a
// value. K blocks (depth head_dim, columns tokens) and V blocks (depth tokens, columns head_dim) are pairs of
// bf16 along `k` in one 32-bit word: the operand of the bf16 dot-product instructions as it stands, and one
// shift or mask away from f32. Weights have that form too, or f16 where that loses less and the kernels take
// it.
//
// Invariance. Every output element is one chain of multiply-adds over ascending `k` (with AMX a chain of
// groups of 32, tiles-inl.h), whatever the tile it falls into: so a row's bits depend on that row and the
// panel alone.
#pragma once

#include <cstdint>

namespace ridgefill::kernels::cpu {

inline constexpr int kPanel = 64;         // columns of a panel; also tokens of a cache block
inline constexpr int kDepthBlock = 1024;  // depth that is converted and multiplied at a time (L2-sized)

enum class PanelForm : uint8_t {
  kBf16Pairs,  // [depth / 2][kPanel] words; low half: even k
  kF16,        // [depth][kPanel]; only where activations are f32
  kF32Rows,    // rows of an f32 matrix as it lies, `columns` of them; only where x is f32
};

// Product of some rows with one panel: y = x * panel (+ bias) (+ y).
struct GemmTask {
  const void* x = nullptr;  // activations [rows, depth], or f32 with the strides below
  int64_t rows = 0;
  int64_t depth = 0;           // even unless the form is kF32Rows
  int64_t x_row_stride = 0;    // in elements of x
  int64_t x_depth_stride = 1;  // 1, or for a transposed f32 x its row length

  PanelForm form = PanelForm::kBf16Pairs;
  const uint32_t* panel = nullptr;  // kBf16Pairs, kF16
  const float* f32 = nullptr;       // kF32Rows: [depth][columns] with row stride f32_stride
  int64_t f32_stride = 0;
  int64_t columns = 0;  // columns that exist; the rest of the panel is padding

  void* y = nullptr;  // [rows, columns] with row stride y_stride
  int64_t y_stride = 0;
  bool y_is_bf16 = false;
  bool accumulate = false;      // y is f32 and is added to
  const float* bias = nullptr;  // [columns] or null

  float* scratch = nullptr;  // GemmScratch(rows) floats, 64-byte aligned
};
inline int64_t GemmScratch(int64_t rows) { return (kDepthBlock + rows) * kPanel; }

// Attention of some consecutive rows of one sequence over one KV head.
struct AttentionTask {
  const void* q = nullptr;  // activations [rows, q_heads * head_dim], at the first row and head of the group
  void* out = nullptr;      // the same shape and place
  int64_t row_stride = 0;   // q_heads * head_dim
  const int32_t* positions = nullptr;  // [rows], ascending
  int64_t rows = 0;
  int group = 0;  // query heads of this KV head
  int head_dim = 0;
  int v_columns = 0;  // head_dim rounded up to a multiple of 16
  float scale = 1.0f;

  const uint32_t* cache = nullptr;  // block 0 of this layer and KV head: K panel, then V panel
  int64_t block_stride = 0;         // words from one block to the next
  const int32_t* block_table = nullptr;
  float* scratch = nullptr;  // AttentionScratch(...) floats, 64-byte aligned
};
inline int64_t AttentionScratch(int64_t rows, int group, int head_dim, int v_columns) {
  const int64_t n = rows * group;
  return kPanel * (head_dim + v_columns)  // one block of K and V as f32
         + n * (head_dim + v_columns + 16 + 4) + 256;
}

// Attention mass of one block's tokens: columns [64 * block, 64 * block + columns) gather from all rows.
struct MassTask {
  AttentionTask rows;              // each sees the block; no out; scratch for tile_rows
  int64_t tile_rows = 0;           // rows at a time
  const float* peak = nullptr;     // [rows * group], of attention_softmax
  const float* inverse = nullptr;  // likewise
  int64_t block = 0;
  int64_t min_distance = 0;
  bool maximum = false;   // else the sum
  float* mass = nullptr;  // [columns], of this block
  int64_t columns = 0;
};

// RoPE of one row's heads and the write of its K and V.
struct RopeTask {
  void* q = nullptr;  // activations [q_heads, head_dim], turned in place; or null
  int q_heads = 0;
  const void* kv = nullptr;  // [2][kv_heads, head_dim]
  bool kv_is_f32 = true;
  int kv_heads = 0;
  int head_dim = 0;
  int v_columns = 0;
  const float* cosine = nullptr;  // [head_dim / 2]
  const float* sine = nullptr;
  uint32_t* cache = nullptr;  // the row's block of this layer, KV head 0
  int64_t head_stride = 0;    // words from one KV head to the next
  int64_t slot = 0;           // token within the block
  float* scratch = nullptr;   // [head_dim]
};

// Element-wise and row ops; `bf16` flags say what a void pointer holds (otherwise f32).
struct RmsNormTask {
  const float* x = nullptr;  // [rows, d]
  const float* weight = nullptr;
  float eps = 0;
  int64_t rows = 0, d = 0;
  void* out = nullptr;
  bool out_is_bf16 = false;
};

struct KernelTable {
  const char* isa;
  bool bf16_activations;  // else f32, and weight panels may be f16
  int tile_rows;          // rows that a product takes at a time
  void (*gemm)(const GemmTask&);
  void (*attention)(const AttentionTask&);
  // Each query row's maximum (times scale * log2(e)) and 1 / sum of its softmax: [rows * group].
  void (*attention_softmax)(const AttentionTask&, float* peak, float* inverse);
  void (*attention_mass)(const MassTask&);
  void (*rope)(const RopeTask&);
  void (*rms_norm)(const RmsNormTask&);
  void (*swiglu)(const void* gate, const void* up, void* out, int64_t n);  // activations
  void (*cast)(const void* x, bool x_is_bf16, void* out, bool out_is_bf16, int64_t n);
  float (*row_norm)(const float* x, int64_t d);
};

extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const KernelTable kAvx512Bf16Kernels;
extern const KernelTable kAmxBf16Kernels;
// The AVX-512-BF16 and AMX kernels with their products spelt out in AVX-512: let any AVX-512 machine test
// those paths. Never chosen by themselves.
extern const KernelTable kAvx512Bf16EmulatedKernels;
extern const KernelTable kAmxBf16EmulatedKernels;

}  // namespace ridgefill::kernels::cpu
