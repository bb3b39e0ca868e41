// The fast CPU backend: its own thread pool, kernels chosen at run time for the machine's instruction set.
//
// K and V are bf16 on every ISA, weights 16 bits a value. amx_bf16 multiplies bf16 activations in tiles,
// avx512_bf16 with dot-product instructions; avx512 and avx2 keep f32 activations and turn the other operand
// into f32 on the way, so there a weight may as well be f16, with eight times less rounding than bf16. Sums
// are f32 chains over ascending depth everywhere, of groups of 32 with AMX (kernel_table.h), so results are
// batch invariant.
//
// Thread-safety: ops on different streams may come from different threads; they take turns on the pool.
#pragma once

#include <memory>
#include <vector>

#include "kernels/api/backend.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_pool.h"

namespace ridgefill::kernels::cpu {

struct CpuStream : Stream {};

struct CpuEvent : Event {
  bool Done() const override { return true; }
};

// One form serves both phases: panels of 64 outputs.
class CpuLinear : public PackedLinear {
 public:
  int64_t out_features() const override { return out; }
  int64_t in_features() const override { return in; }
  bool has(Phase phase) const override { return phase == Phase::kPrompt ? for_prompt : for_decode; }
  int64_t bytes() const override {
    return panels() * panel_words() * 4 + static_cast<int64_t>(bias.size()) * 4;
  }
  int64_t panels() const { return (out + kPanel - 1) / kPanel; }
  int64_t panel_words() const { return in / 2 * kPanel; }
  uint32_t* panel(int64_t i) const { return reinterpret_cast<uint32_t*>(weight.get()) + i * panel_words(); }

  int64_t out = 0, in = 0;
  bool for_prompt = true, for_decode = true;
  HostMemory::Buffer weight;
  std::vector<PanelForm> forms;  // [panels]
  std::vector<float> bias;       // [out] or empty
};

// Per layer and block, per KV head: the K panel [head_dim / 2][64 tokens], then the V panel
// [32 token pairs][v_columns], as bf16 pairs.
class CpuKvCache : public KvCache {
 public:
  CpuKvCache(const KvCacheSpec& spec, HostMemory::Buffer memory) : spec_(spec), memory_(std::move(memory)) {}
  const KvCacheSpec& spec() const override { return spec_; }
  static int VColumns(const KvCacheSpec& spec) { return (spec.head_dim + 15) / 16 * 16; }
  static int64_t HeadWords(const KvCacheSpec& spec) {
    return static_cast<int64_t>(kPanel) / 2 * (spec.head_dim + VColumns(spec));
  }
  int v_columns() const { return VColumns(spec_); }
  int64_t head_words() const { return HeadWords(spec_); }
  int64_t block_words() const { return head_words() * spec_.kv_heads; }
  uint32_t* block(int layer, int64_t block) const {
    return reinterpret_cast<uint32_t*>(memory_.get()) + (layer * spec_.blocks + block) * block_words();
  }

 private:
  KvCacheSpec spec_;
  HostMemory::Buffer memory_;
};

class CpuBatch : public Batch {
 public:
  struct Sequence {
    int64_t row_begin, row_count;
    std::vector<int32_t> block_table;
  };
  CpuBatch(const BatchSpec& spec, const RopeSpec* rope);
  int64_t rows() const override { return static_cast<int64_t>(positions.size()); }
  int64_t sequence_count() const override { return static_cast<int64_t>(sequences.size()); }
  int32_t max_block() const override { return max_block_; }
  int32_t max_position() const override { return max_position_; }

  std::vector<int32_t> positions;    // [rows]
  std::vector<int32_t> sequence_of;  // [rows]: index into sequences
  std::vector<Sequence> sequences;
  std::vector<double> frequencies;  // of the rope that the angles are for; empty without
  std::vector<float> cosine, sine;  // [rows, head_dim / 2]

 private:
  int32_t max_block_ = -1, max_position_ = -1;
};

class CpuBackend : public Backend {
 public:
  CpuBackend(const KernelTable* kernels, int threads);
  const Capabilities& capabilities() const override { return capabilities_; }
  absl::StatusOr<Tensor> Allocate(DType dtype, absl::Span<const int64_t> dims) override;
  absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) override;
  absl::StatusOr<std::unique_ptr<KvCache>> NewKvCache(const KvCacheSpec& spec) override;
  absl::StatusOr<std::unique_ptr<Batch>> NewBatch(const BatchSpec& spec, const RopeSpec* rope) override;
  std::unique_ptr<Stream> NewStream() override { return std::make_unique<CpuStream>(); }
  std::unique_ptr<Event> Record(Stream&) override { return std::make_unique<CpuEvent>(); }
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

  // Runs body(begin, end) over [0, rows) in pieces that are worth a thread; `row_work` is roughly the
  // elements of a row.
  void ForRows(int64_t rows, int64_t row_work, absl::FunctionRef<void(int64_t, int64_t)> body);
  template <typename Move>
  void ForKv(const CpuKvCache& kv, const KvSpan& span, Move move);
  // Runs `tasks` products [rows per task as set], with scratch from the running thread.
  void RunGemm(int64_t tasks, int64_t rows, absl::FunctionRef<GemmTask(int64_t)> make_task);
  // At least `floats` of 64-byte aligned memory of one pool thread.
  float* Scratch(int thread, int64_t floats);
  absl::Status CheckActivation(absl::string_view op, const TensorView& t) const;

  const KernelTable* kernels_;
  Capabilities capabilities_;
  HostMemory memory_;
  ThreadPool pool_;
  struct ScratchArea {
    std::unique_ptr<float, void (*)(void*)> memory{nullptr, nullptr};
    int64_t floats = 0;
  };
  std::vector<ScratchArea> scratch_;  // per pool thread; touched only inside a job
};

}  // namespace ridgefill::kernels::cpu
