// The oracle: every op in the obvious way, one thread, f64 accumulation, f32 activations. Only K and V are
// rounded to bf16, when they are written, because that is what the cache holds on every backend (unless
// ReferenceOptions say otherwise).
//
// Thread-safety: stateless apart from what callers own, so any thread may call anything.
#pragma once

#include <memory>
#include <vector>

#include "engine/base/float16.h"
#include "kernels/api/backend.h"

namespace ridgefill::kernels::reference {

struct ReferenceStream : Stream {};

struct ReferenceEvent : Event {
  bool Done() const override { return true; }
};

// Weights as [in, out], so that the inner loop of a product runs over outputs and sums stay in ascending
// `in`.
class ReferenceLinear : public PackedLinear {
 public:
  explicit ReferenceLinear(const LinearSource& source);
  int64_t out_features() const override { return out_; }
  int64_t in_features() const override { return in_; }
  bool has(Phase phase) const override { return phase == Phase::kPrompt ? prompt_ : decode_; }
  int64_t bytes() const override { return static_cast<int64_t>((weight_.size() + bias_.size()) * 4); }
  const float* column(int64_t in) const { return weight_.data() + in * out_; }
  float bias(int64_t out) const { return bias_.empty() ? 0.0f : bias_[out]; }

 private:
  int64_t out_, in_;
  bool prompt_, decode_;
  std::vector<float> weight_;  // [in, out]
  std::vector<float> bias_;    // [out] or empty
};

// Per layer and block: K [64, kv_heads, head_dim], then V; in f32, rounded to bf16 by Put() unless told not
// to.
class ReferenceKvCache : public KvCache {
 public:
  ReferenceKvCache(const KvCacheSpec& spec, bool round)
      : spec_(spec), round_(round), data_(static_cast<size_t>(spec.total_bytes() / 2)) {}
  const KvCacheSpec& spec() const override { return spec_; }
  int64_t token_elements() const { return static_cast<int64_t>(spec_.kv_heads) * spec_.head_dim; }
  // `value` as the cache holds it.
  float Put(float value) const { return round_ ? base::BF16ToF32(base::F32ToBF16(value)) : value; }
  // K [kv_heads, head_dim] of one token.
  float* k(int layer, int32_t block, int64_t token) {
    return data_.data() + ((layer * spec_.blocks + block) * 2 * kBlockTokens + token) * token_elements();
  }
  float* v(int layer, int32_t block, int64_t token) { return k(layer, block, token + kBlockTokens); }
  const float* k(int layer, int32_t block, int64_t token) const {
    return const_cast<ReferenceKvCache*>(this)->k(layer, block, token);
  }
  const float* v(int layer, int32_t block, int64_t token) const {
    return k(layer, block, token + kBlockTokens);
  }

 private:
  KvCacheSpec spec_;
  bool round_;
  std::vector<float> data_;
};

class ReferenceBatch : public Batch {
 public:
  explicit ReferenceBatch(const BatchSpec& spec);
  int64_t rows() const override { return static_cast<int64_t>(positions_.size()); }
  int64_t sequence_count() const override { return static_cast<int64_t>(tables_.size()); }
  int32_t max_block() const override { return max_block_; }
  int32_t max_position() const override;
  int32_t position(int64_t row) const { return positions_[row]; }
  // Block of position `p` of the sequence that `row` belongs to.
  int32_t block(int64_t row, int64_t p) const { return tables_[sequence_[row]][p / kBlockTokens]; }

 private:
  std::vector<int32_t> positions_;            // [rows]
  std::vector<int32_t> sequence_;             // [rows]: index into tables_
  std::vector<std::vector<int32_t>> tables_;  // [sequences][blocks]
  int32_t max_block_ = -1;
};

class ReferenceBackend : public Backend {
 public:
  explicit ReferenceBackend(const ReferenceOptions& options);
  const Capabilities& capabilities() const override { return capabilities_; }
  absl::StatusOr<Tensor> Allocate(DType dtype, absl::Span<const int64_t> dims) override;
  absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) override;
  absl::StatusOr<std::unique_ptr<KvCache>> NewKvCache(const KvCacheSpec& spec) override;
  absl::StatusOr<std::unique_ptr<Batch>> NewBatch(const BatchSpec& spec, const RopeSpec* rope) override;
  std::unique_ptr<Stream> NewStream() override { return std::make_unique<ReferenceStream>(); }
  std::unique_ptr<Event> Record(Stream&) override { return std::make_unique<ReferenceEvent>(); }
  absl::Status Synchronize(Stream&) override { return absl::OkStatus(); }

 private:
  absl::Status DoCopyFromHost(Stream&, absl::Span<const char> from, const TensorView& to) override;
  absl::Status DoCopyToHost(Stream&, const TensorView& from, absl::Span<char> to) override;
  absl::Status DoReadKv(Stream&, const KvCache& cache, const KvSpan& span, absl::Span<char> to) override;
  absl::Status DoWriteKv(Stream&, KvCache& cache, const KvSpan& span, absl::Span<const char> from) override;
  absl::Status DoEmbedding(Stream&, const EmbeddingArgs& a) override;
  absl::Status DoRmsNorm(Stream&, const RmsNormArgs& a) override;
  absl::Status DoSwiGlu(Stream&, const SwiGluArgs& a) override;
  absl::Status DoCast(Stream&, const CastArgs& a) override;
  absl::Status DoLinear(Stream&, const LinearArgs& a) override;
  absl::Status DoGram(Stream&, const GramArgs& a) override;
  absl::Status DoRopeWrite(Stream&, const RopeWriteArgs& a) override;
  absl::Status DoAttention(Stream&, const AttentionArgs& a) override;
  absl::Status DoAttentionMass(Stream&, const AttentionMassArgs& a) override;
  absl::Status DoGatherRows(Stream&, const GatherRowsArgs& a) override;
  absl::Status DoRowNorm(Stream&, const RowNormArgs& a) override;

  ReferenceOptions options_;
  Capabilities capabilities_;
};

// Element `i` of a tensor of f32 or bf16, read as f32 and written rounded to its dtype.
float Load(const TensorView& t, int64_t i);
void Store(const TensorView& t, int64_t i, float value);

}  // namespace ridgefill::kernels::reference
