// RoPE, the cache and attention of the CPU backend.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/api/check_args.h"
#include "kernels/cpu/cpu_backend.h"

namespace ridgefill::kernels::cpu {
namespace {

// Query rows (positions x group) that share one pass over K and V: enough that turning a block into f32 is a
// few percent of the work.
constexpr int64_t kQueryRows = 192;

struct QueryTile {
  int32_t sequence;
  int64_t row_begin, row_count;
  int64_t work;
};

// The rows of every sequence in tiles, longest first, so that the last tasks to finish are short ones.
std::vector<QueryTile> MakeTiles(const CpuBatch& batch, int64_t rows_per_tile) {
  std::vector<QueryTile> tiles;
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const CpuBatch::Sequence& seq = batch.sequences[s];
    for (int64_t r = 0; r < seq.row_count; r += rows_per_tile) {
      const int64_t begin = seq.row_begin + r, count = std::min(rows_per_tile, seq.row_count - r);
      tiles.push_back(
          {static_cast<int32_t>(s), begin, count, count * (batch.positions[begin + count - 1] + 1)});
    }
  }
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const QueryTile& a, const QueryTile& b) { return a.work > b.work; });
  return tiles;
}

// Where one token of one KV head lies in a block.
struct TokenPlace {
  uint16_t* k;  // element i at k[(i / 2) * 2 * kPanel + i % 2]
  uint16_t* v;  // element i at v[2 * i]
};

TokenPlace Place(const CpuKvCache& cache, int layer, int32_t block, int64_t slot, int head) {
  uint32_t* base = cache.block(layer, block) + head * cache.head_words();
  uint32_t* v =
      base + static_cast<int64_t>(cache.spec().head_dim / 2) * kPanel + slot / 2 * cache.v_columns();
  return {reinterpret_cast<uint16_t*>(base + slot), reinterpret_cast<uint16_t*>(v) + slot % 2};
}

}  // namespace

// Calls move(place in the cache, place in the span's canonical bytes) for every K and V value of a span.
template <typename Move>
void CpuBackend::ForKv(const CpuKvCache& kv, const KvSpan& span, Move move) {
  const int head_dim = kv.spec().head_dim, kv_heads = kv.spec().kv_heads;
  const int64_t token = static_cast<int64_t>(kv_heads) * head_dim;
  ForRows(span.token_count, 2 * token, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t p = span.token_begin + t;
      for (int h = 0; h < kv_heads; ++h) {
        const TokenPlace at = Place(kv, span.layer, span.block_table[p / kPanel], p % kPanel, h);
        const int64_t k = 2 * (t * token + h * head_dim), v = k + 2 * span.token_count * token;
        for (int i = 0; i < head_dim; ++i) {
          move(at.k + (i / 2) * 2 * kPanel + i % 2, k + 2 * i);
          move(at.v + 2 * i, v + 2 * i);
        }
      }
    }
  });
}

absl::Status CpuBackend::DoReadKv(Stream&, const KvCache& cache, const KvSpan& span, absl::Span<char> to) {
  ForKv(static_cast<const CpuKvCache&>(cache), span,
        [&](const uint16_t* value, int64_t at) { std::memcpy(&to[at], value, 2); });
  return absl::OkStatus();
}

absl::Status CpuBackend::DoWriteKv(Stream&, KvCache& cache, const KvSpan& span, absl::Span<const char> from) {
  ForKv(static_cast<const CpuKvCache&>(cache), span,
        [&](uint16_t* value, int64_t at) { std::memcpy(value, &from[at], 2); });
  return absl::OkStatus();
}

absl::Status CpuBackend::DoRopeWrite(Stream&, const RopeWriteArgs& a) {
  const auto& batch = static_cast<const CpuBatch&>(*a.batch);
  const auto& cache = static_cast<const CpuKvCache&>(*a.cache);
  if (batch.frequencies != a.rope->inverse_frequencies)
    return BadArgs("rope_write: the batch was made for another rope");
  const bool has_q = a.q.rank != 0;
  if (has_q) RF_RETURN_IF_ERROR(CheckActivation("rope_write", a.q));
  const int head_dim = a.rope->head_dim, half = head_dim / 2;
  RopeTask shared;
  shared.q_heads = has_q ? static_cast<int>(a.q.dim(1) / head_dim) : 0;
  shared.kv_is_f32 = a.kv.dtype == DType::kF32;
  shared.kv_heads = cache.spec().kv_heads;
  shared.head_dim = head_dim;
  shared.v_columns = cache.v_columns();
  shared.head_stride = cache.head_words();
  const int64_t q_bytes = has_q ? a.q.row_elements() * ByteSize(a.q.dtype) : 0;
  const int64_t kv_bytes = a.kv.row_elements() * ByteSize(a.kv.dtype);
  ForRows(batch.rows(), 4 * a.kv.dim(1), [&](int64_t begin, int64_t end) {
    std::vector<float> turned(head_dim);
    RopeTask task = shared;
    task.scratch = turned.data();
    for (int64_t r = begin; r < end; ++r) {
      const int32_t position = batch.positions[r];
      const auto& table = batch.sequences[batch.sequence_of[r]].block_table;
      task.q = has_q ? a.q.as<char>() + r * q_bytes : nullptr;
      task.kv = a.kv.as<char>() + r * kv_bytes;
      task.cosine = batch.cosine.data() + r * half;
      task.sine = batch.sine.data() + r * half;
      task.cache = cache.block(a.layer, table[position / kPanel]);
      task.slot = position % kPanel;
      kernels_->rope(task);
    }
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::DoAttention(Stream&, const AttentionArgs& a) {
  RF_RETURN_IF_ERROR(CheckActivation("attention", a.q));
  const auto& batch = static_cast<const CpuBatch&>(*a.batch);
  const auto& cache = static_cast<const CpuKvCache&>(*a.cache);
  const int kv_heads = cache.spec().kv_heads, head_dim = cache.spec().head_dim;
  const int group = static_cast<int>(a.q.dim(1) / head_dim / kv_heads);
  const int64_t rows_per_tile = std::max<int64_t>(kQueryRows / group, 1);
  const std::vector<QueryTile> tiles = MakeTiles(batch, rows_per_tile);
  pool_.ParallelFor(static_cast<int64_t>(tiles.size()) * kv_heads, [&](int64_t i, int thread) {
    const QueryTile& tile = tiles[i / kv_heads];
    const int64_t head = i % kv_heads;
    const int64_t offset = (tile.row_begin * a.q.dim(1) + head * group * head_dim) * ByteSize(a.q.dtype);
    AttentionTask task;
    task.q = a.q.as<char>() + offset;
    task.out = a.out.as<char>() + offset;
    task.row_stride = a.q.dim(1);
    task.positions = batch.positions.data() + tile.row_begin;
    task.rows = tile.row_count;
    task.group = group;
    task.head_dim = head_dim;
    task.v_columns = cache.v_columns();
    task.scale = a.scale;
    task.cache = cache.block(a.layer, 0) + head * cache.head_words();
    task.block_stride = cache.block_words();
    task.block_table = batch.sequences[tile.sequence].block_table.data();
    task.scratch = Scratch(thread, AttentionScratch(rows_per_tile, group, head_dim, task.v_columns));
    kernels_->attention(task);
  });
  return absl::OkStatus();
}

}  // namespace ridgefill::kernels::cpu
