// Attention mass of the CPU backend.
#include <algorithm>
#include <vector>

#include "engine/base/status.h"
#include "kernels/cpu/cpu_backend.h"

namespace ridgefill::kernels::cpu {
namespace {

constexpr int64_t kQueryRows = 192;  // as in attention: query rows that share one pass over a block

// The softmax of every query row: [kv_heads][rows * group].
struct Softmax {
  std::vector<float> peak, inverse;
};

}  // namespace

// First a softmax for every row, by tiles of rows; then each block's columns gather all rows in order, by
// blocks. Neither order depends on who runs what.
absl::Status CpuBackend::DoAttentionMass(Stream&, const AttentionMassArgs& a) {
  RF_RETURN_IF_ERROR(CheckActivation("attention_mass", a.q));
  const auto& batch = static_cast<const CpuBatch&>(*a.batch);
  const auto& cache = static_cast<const CpuKvCache&>(*a.cache);
  const int64_t rows = batch.rows(), kv_heads = cache.spec().kv_heads, head_dim = cache.spec().head_dim;
  const int64_t group = a.q.dim(1) / head_dim / kv_heads, last = batch.positions.back();
  const int64_t tile_rows = std::max<int64_t>(kQueryRows / group, 1),
                tiles = (rows + tile_rows - 1) / tile_rows;
  Softmax softmax{std::vector<float>(kv_heads * rows * group), std::vector<float>(kv_heads * rows * group)};
  const auto rows_of = [&](int64_t head, int64_t begin, int64_t count, int thread) {
    AttentionTask task;
    task.q = a.q.as<char>() + (begin * a.q.dim(1) + head * group * head_dim) * ByteSize(a.q.dtype);
    task.row_stride = a.q.dim(1);
    task.positions = batch.positions.data() + begin;
    task.rows = count;
    task.group = static_cast<int>(group);
    task.head_dim = static_cast<int>(head_dim);
    task.v_columns = cache.v_columns();
    task.scale = a.scale;
    task.cache = cache.block(a.layer, 0) + head * cache.head_words();
    task.block_stride = cache.block_words();
    task.block_table = batch.sequences[0].block_table.data();
    task.scratch = Scratch(thread, AttentionScratch(tile_rows, task.group, task.head_dim, task.v_columns));
    return task;
  };
  pool_.ParallelFor(tiles * kv_heads, [&](int64_t i, int thread) {
    const int64_t head = i % kv_heads, begin = (tiles - 1 - i / kv_heads) * tile_rows;  // longest first
    const int64_t at = (head * rows + begin) * group;
    kernels_->attention_softmax(rows_of(head, begin, std::min(tile_rows, rows - begin), thread),
                                softmax.peak.data() + at, softmax.inverse.data() + at);
  });
  const int64_t blocks = std::max<int64_t>(last - a.min_distance + kPanel, 0) / kPanel;
  pool_.ParallelFor(blocks * kv_heads, [&](int64_t i, int thread) {
    MassTask task;
    task.block = i / kv_heads;  // the first blocks have most rows
    const int64_t head = i % kv_heads, begin_column = task.block * kPanel;
    const auto first =
        std::lower_bound(batch.positions.begin(), batch.positions.end(), begin_column + a.min_distance);
    const int64_t begin = first - batch.positions.begin(), at = (head * rows + begin) * group;
    task.rows = rows_of(head, begin, rows - begin, thread);
    task.tile_rows = tile_rows;
    task.peak = softmax.peak.data() + at;
    task.inverse = softmax.inverse.data() + at;
    task.min_distance = a.min_distance;
    task.maximum = a.reduction == MassReduction::kMax;
    task.mass = a.mass.as<float>() + head * a.mass.dim(1) + begin_column;
    task.columns = std::min<int64_t>(kPanel, a.mass.dim(1) - begin_column);
    kernels_->attention_mass(task);
  });
  return absl::OkStatus();
}

}  // namespace ridgefill::kernels::cpu
