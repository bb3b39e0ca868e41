// The paged KV cache and the ops that write and read it.
//
// A cache is an array of blocks of kBlockTokens tokens for every layer. Which block holds which tokens of
// which sequence is the caller's business (engine/cache): ops get block tables. How a block is laid out in
// memory is the backend's business; bytes enter and leave in the canonical form of KvSpan only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/api/linear.h"
#include "kernels/api/tensor.h"

namespace ridgefill::kernels {

inline constexpr int kBlockTokens = 64;

struct KvCacheSpec {
  int layers = 0;
  int64_t blocks = 0;
  int kv_heads = 0;
  int head_dim = 0;
  // Canonical bytes of K and V together for one token of one layer (bf16).
  int64_t token_bytes() const { return 2LL * kv_heads * head_dim * 2; }
  int64_t total_bytes() const { return token_bytes() * kBlockTokens * blocks * layers; }
};
absl::Status Check(const KvCacheSpec& spec);

// Owns the memory of all blocks. Concurrent reads are safe; writes go through one stream. Must not outlive
// its backend.
class KvCache {
 public:
  virtual ~KvCache() = default;
  virtual const KvCacheSpec& spec() const = 0;
};

// How RoPE turns positions into angles. Su et al. 2021; half-split ("neox") pairing: element i turns with i +
// dim/2.
struct RopeSpec {
  int head_dim = 0;
  // Angle per position of each pair, [head_dim / 2]; every scaling rule (linear, Llama-3) is folded in by the
  // model.
  std::vector<double> inverse_frequencies;
};

// One sequence's rows inside a batch.
struct SequenceRows {
  int64_t row_begin = 0;  // first row of the batch that belongs to it
  int64_t row_count = 0;
  // Blocks in token order: position p lives in block_table[p / kBlockTokens] at p % kBlockTokens. Covers all
  // positions of the rows. Borrowed until the batch is destroyed.
  absl::Span<const int32_t> block_table;
};

struct BatchSpec {
  absl::Span<const int32_t> positions;  // [rows], ascending within each sequence (not necessarily contiguous)
  absl::Span<const SequenceRows> sequences;  // in row order, covering all rows
  Phase phase = Phase::kPrompt;
};
// Sequences cover all rows in order, positions ascend within each and lie inside its block table.
absl::Status Check(const BatchSpec& spec);

// A batch's metadata in the form that a backend wants (tiles, slots, angles; device copies). Made once per
// step, used by all layers. Not thread-safe.
class Batch {
 public:
  virtual ~Batch() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t sequence_count() const = 0;
  // The largest block id in its block tables; the ops check it against the cache.
  virtual int32_t max_block() const = 0;
  // The largest position of its rows; -1 without rows.
  virtual int32_t max_position() const = 0;
};

// Turns q and k by RoPE at each row's position and writes k and v into the cache.
struct RopeWriteArgs {
  const Batch* batch = nullptr;
  const RopeSpec* rope = nullptr;
  TensorView q;  // activation dtype [rows, q_heads * head_dim], turned in place; rank 0 when only K and V are
                 // written (fill)
  TensorView kv;  // activation dtype or f32 [rows, 2 * kv_heads * head_dim]: K before RoPE, then V
  KvCache* cache = nullptr;
  int layer = 0;
};
absl::Status Check(const RopeWriteArgs& args);

// Causal attention of each row over its sequence's cache at positions <= its own (its own K and V already
// written). out = softmax(q k^T * scale) v with grouped heads (q head h reads kv head h / (q_heads /
// kv_heads)). Online softmax over blocks in ascending order (Dao et al. 2022); no [rows, tokens] buffer
// beyond one tile. A row's result depends on its q, its position and its sequence's cache only: not on its
// neighbours, the chunk or the tile it falls into.
struct AttentionArgs {
  const Batch* batch = nullptr;
  TensorView q;  // activation dtype [rows, q_heads * head_dim]
  const KvCache* cache = nullptr;
  int layer = 0;
  float scale = 1.0f;  // 1 / sqrt(head_dim) as a rule
  TensorView out;      // activation dtype [rows, q_heads * head_dim]
};
absl::Status Check(const AttentionArgs& args);

enum class MassReduction : uint8_t { kSum, kMax };

// What each position receives from some rows' attention: with p(r, h, j) = softmax over j <= position(r) of
// q k^T * scale, mass[g][j] gains the sum (or becomes the maximum) of p(r, h, j) over the batch's rows r with
// j <= position(r) - min_distance and the query heads h of KV head g.
//
// Never stores [rows, tokens]: one pass over the blocks for each row's maximum and sum, a second one for the
// probabilities. A column gathers in one fixed order, rows ascending and heads within a row, so calls over
// the chunks of a prompt give the bits of one call over all of it.
struct AttentionMassArgs {
  const Batch* batch = nullptr;  // of exactly one sequence
  TensorView q;                  // activation dtype [rows, q_heads * head_dim], turned by RoPE
  const KvCache* cache = nullptr;
  int layer = 0;
  float scale = 1.0f;
  int64_t min_distance = 0;  // a row's nearest neighbours that are left out
  MassReduction reduction = MassReduction::kSum;
  TensorView mass;  // f32 [kv_heads, columns], columns > every position; the caller sets it to 0 at first
};
absl::Status Check(const AttentionMassArgs& args);

// Canonical bytes of tokens [token_begin, token_begin + token_count) of one layer, on the host: K [token,
// kv_head, head_dim] bf16 after RoPE, then V likewise. This is the wire form (docs/architecture.md).
struct KvSpan {
  int layer = 0;
  absl::Span<const int32_t> block_table;
  int64_t token_begin = 0;
  int64_t token_count = 0;
  // Bytes of the span: token_count * spec.token_bytes().
  int64_t bytes(const KvCacheSpec& spec) const { return token_count * spec.token_bytes(); }
};
absl::Status Check(const KvSpan& span, const KvCacheSpec& spec, int64_t host_bytes);

}  // namespace ridgefill::kernels
