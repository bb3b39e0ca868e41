#include "kernels/api/attention.h"

#include "kernels/api/check_args.h"

namespace ridgefill::kernels {
namespace {

absl::Status CheckCache(absl::string_view op, const Batch* batch, const KvCache* cache, int layer) {
  if (cache == nullptr) return BadArgs(absl::StrCat(op, ": no cache"));
  if (batch == nullptr) return BadArgs(absl::StrCat(op, ": no batch"));
  if (layer < 0 || layer >= cache->spec().layers) {
    return BadArgs(absl::StrCat(op, ": layer ", layer, " of a cache of ", cache->spec().layers));
  }
  if (batch->max_block() >= cache->spec().blocks) {
    return BadArgs(absl::StrCat(op, ": block ", batch->max_block(), " of ", cache->spec().blocks));
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(const BatchSpec& spec, const SequenceRows& seq) {
  if (seq.row_count <= 0 || seq.row_begin + seq.row_count > static_cast<int64_t>(spec.positions.size())) {
    return BadArgs(
        absl::StrCat("batch: rows [", seq.row_begin, ", +", seq.row_count, ") of ", spec.positions.size()));
  }
  const int64_t capacity = static_cast<int64_t>(seq.block_table.size()) * kBlockTokens;
  int32_t previous = -1;
  for (int32_t position : spec.positions.subspan(seq.row_begin, seq.row_count)) {
    if (position <= previous) return BadArgs(absl::StrCat("batch: position ", position, " after ", previous));
    if (position >= capacity) return BadArgs(absl::StrCat("batch: position ", position, " of ", capacity));
    previous = position;
  }
  for (int32_t block : seq.block_table) {
    if (block < 0) return BadArgs(absl::StrCat("batch: block ", block));
  }
  return absl::OkStatus();
}

absl::Status CheckQueries(absl::string_view op, absl::string_view name, const TensorView& q, int64_t rows,
                          const KvCacheSpec& spec) {
  const int64_t group = static_cast<int64_t>(spec.kv_heads) * spec.head_dim;
  if (q.rank != 2 || q.dim(0) != rows || q.dim(1) % group != 0) {
    return BadArgs(absl::StrCat(op, ": ", name, " is ", q.DebugString(), ", expected [", rows,
                                ", multiple of ", group, "]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Check(const KvCacheSpec& spec) {
  if (spec.layers > 0 && spec.blocks > 0 && spec.kv_heads > 0 && spec.head_dim > 0 &&
      spec.head_dim % 2 == 0) {
    return absl::OkStatus();
  }
  return BadArgs(absl::StrCat("kv cache: ", spec.layers, " layers, ", spec.blocks, " blocks, ", spec.kv_heads,
                              " kv heads of ", spec.head_dim, " (even)"));
}

absl::Status Check(const BatchSpec& spec) {
  int64_t next_row = 0;
  for (const SequenceRows& seq : spec.sequences) {
    if (seq.row_begin != next_row) {
      return BadArgs(absl::StrCat("batch: a sequence begins at row ", seq.row_begin, ", not ", next_row));
    }
    RF_RETURN_IF_ERROR(CheckSequence(spec, seq));
    next_row += seq.row_count;
  }
  if (next_row == static_cast<int64_t>(spec.positions.size())) return absl::OkStatus();
  return BadArgs(absl::StrCat("batch: sequences cover ", next_row, " of ", spec.positions.size(), " rows"));
}

absl::Status Check(const RopeWriteArgs& a) {
  RF_RETURN_IF_ERROR(CheckCache("rope_write", a.batch, a.cache, a.layer));
  if (a.rope == nullptr) return BadArgs("rope_write: no rope");
  const KvCacheSpec& spec = a.cache->spec();
  if (a.rope->head_dim != spec.head_dim ||
      static_cast<int>(a.rope->inverse_frequencies.size()) != spec.head_dim / 2) {
    return BadArgs("rope_write: the rope spec is for another head_dim");
  }
  if (a.q.rank != 0) RF_RETURN_IF_ERROR(CheckQueries("rope_write", "q", a.q, a.batch->rows(), spec));
  return CheckShape("rope_write", "kv", a.kv, {a.batch->rows(), 2LL * spec.kv_heads * spec.head_dim});
}

absl::Status Check(const AttentionArgs& a) {
  RF_RETURN_IF_ERROR(CheckCache("attention", a.batch, a.cache, a.layer));
  RF_RETURN_IF_ERROR(CheckQueries("attention", "q", a.q, a.batch->rows(), a.cache->spec()));
  return CheckTensor("attention", "out", a.out, a.q.dtype, {a.q.dim(0), a.q.dim(1)});
}

absl::Status Check(const AttentionMassArgs& a) {
  RF_RETURN_IF_ERROR(CheckCache("attention_mass", a.batch, a.cache, a.layer));
  RF_RETURN_IF_ERROR(CheckQueries("attention_mass", "q", a.q, a.batch->rows(), a.cache->spec()));
  if (a.batch->sequence_count() != 1) {
    return BadArgs(absl::StrCat("attention_mass: ", a.batch->sequence_count(), " sequences, expected 1"));
  }
  if (a.min_distance < 0) return BadArgs(absl::StrCat("attention_mass: min_distance ", a.min_distance));
  if (a.mass.rank != 2 || a.mass.dtype != DType::kF32 || a.mass.dim(0) != a.cache->spec().kv_heads ||
      a.mass.dim(1) <= a.batch->max_position()) {
    return BadArgs(absl::StrCat("attention_mass: mass is ", a.mass.DebugString(), ", expected f32 [",
                                a.cache->spec().kv_heads, ", more than ", a.batch->max_position(), "]"));
  }
  return absl::OkStatus();
}

absl::Status Check(const KvSpan& span, const KvCacheSpec& spec, int64_t host_bytes) {
  const int64_t capacity = static_cast<int64_t>(span.block_table.size()) * kBlockTokens;
  if (span.layer < 0 || span.layer >= spec.layers)
    return BadArgs(absl::StrCat("kv span: layer ", span.layer));
  if (span.token_begin < 0 || span.token_count < 0 || span.token_begin + span.token_count > capacity) {
    return BadArgs(
        absl::StrCat("kv span: tokens [", span.token_begin, ", +", span.token_count, ") of ", capacity));
  }
  if (span.bytes(spec) != host_bytes) {
    return BadArgs(absl::StrCat("kv span: ", host_bytes, " bytes given, ", span.bytes(spec), " needed"));
  }
  for (int32_t block : span.block_table) {
    if (block < 0 || block >= spec.blocks)
      return BadArgs(absl::StrCat("kv span: block ", block, " of ", spec.blocks));
  }
  return absl::OkStatus();
}

}  // namespace ridgefill::kernels
