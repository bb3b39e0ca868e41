// A backend: memory, streams, packed weights, the KV cache and every op of the project on one device.
//
// The public op methods check their arguments and then call the backend's own; a backend implements the Do*
// methods. Ops are enqueued on a stream: they may return before the work is done, and their host-side
// arguments (Batch, PackedLinear, tensors) must live until Synchronize(). The reference and the CPU backend
// finish inside the call.
//
// Thread-safety: one stream is used by one thread at a time; different streams may be used from different
// threads.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/api/attention.h"
#include "kernels/api/linear.h"
#include "kernels/api/pointwise.h"
#include "kernels/api/rows.h"
#include "kernels/api/tensor.h"

namespace ridgefill::kernels {

struct Capabilities {
  std::string name;  // "reference", "cpu", "cuda"
  std::string isa;   // "scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16", "sm_80", ...
  int threads = 1;
  DType activation_dtype = DType::kF32;  // what norms, linears and attention pass between each other
  // The residual stream and h_S are f32 on every backend: h_S travels losslessly.
  bool batch_invariant = true;
};

// A queue of work in order. Created by Backend::NewStream.
class Stream {
 public:
  virtual ~Stream() = default;
};

// A point in a stream. Created by Backend::Record.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool Done() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const Capabilities& capabilities() const = 0;

  // RESOURCE_EXHAUSTED with the arithmetic when the device is out of memory. Contents are undefined.
  virtual absl::StatusOr<Tensor> Allocate(DType dtype, absl::Span<const int64_t> dims) = 0;
  virtual absl::StatusOr<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) = 0;
  virtual absl::StatusOr<std::unique_ptr<KvCache>> NewKvCache(const KvCacheSpec& spec) = 0;
  // `rope` may be null for batches that never pass RopeWrite.
  virtual absl::StatusOr<std::unique_ptr<Batch>> NewBatch(const BatchSpec& spec, const RopeSpec* rope) = 0;

  virtual std::unique_ptr<Stream> NewStream() = 0;
  virtual std::unique_ptr<Event> Record(Stream& stream) = 0;
  virtual absl::Status Synchronize(Stream& stream) = 0;

  // Byte counts must agree. The host memory must live until Synchronize().
  absl::Status CopyFromHost(Stream& stream, absl::Span<const char> from, const TensorView& to);
  absl::Status CopyToHost(Stream& stream, const TensorView& from, absl::Span<char> to);
  // Canonical bytes of a span of the cache (see KvSpan).
  absl::Status ReadKv(Stream& stream, const KvCache& cache, const KvSpan& span, absl::Span<char> to);
  absl::Status WriteKv(Stream& stream, KvCache& cache, const KvSpan& span, absl::Span<const char> from);

  absl::Status Embedding(Stream& stream, const EmbeddingArgs& args);
  absl::Status RmsNorm(Stream& stream, const RmsNormArgs& args);
  absl::Status SwiGlu(Stream& stream, const SwiGluArgs& args);
  absl::Status Cast(Stream& stream, const CastArgs& args);
  absl::Status Linear(Stream& stream, const LinearArgs& args);
  absl::Status Gram(Stream& stream, const GramArgs& args);
  absl::Status RopeWrite(Stream& stream, const RopeWriteArgs& args);
  absl::Status Attention(Stream& stream, const AttentionArgs& args);
  absl::Status AttentionMass(Stream& stream, const AttentionMassArgs& args);
  absl::Status GatherRows(Stream& stream, const GatherRowsArgs& args);
  absl::Status RowNorm(Stream& stream, const RowNormArgs& args);

 private:
  virtual absl::Status DoCopyFromHost(Stream& stream, absl::Span<const char> from, const TensorView& to) = 0;
  virtual absl::Status DoCopyToHost(Stream& stream, const TensorView& from, absl::Span<char> to) = 0;
  virtual absl::Status DoReadKv(Stream& stream, const KvCache& cache, const KvSpan& span,
                                absl::Span<char> to) = 0;
  virtual absl::Status DoWriteKv(Stream& stream, KvCache& cache, const KvSpan& span,
                                 absl::Span<const char> from) = 0;
  virtual absl::Status DoEmbedding(Stream& stream, const EmbeddingArgs& args) = 0;
  virtual absl::Status DoRmsNorm(Stream& stream, const RmsNormArgs& args) = 0;
  virtual absl::Status DoSwiGlu(Stream& stream, const SwiGluArgs& args) = 0;
  virtual absl::Status DoCast(Stream& stream, const CastArgs& args) = 0;
  virtual absl::Status DoLinear(Stream& stream, const LinearArgs& args) = 0;
  virtual absl::Status DoGram(Stream& stream, const GramArgs& args) = 0;
  virtual absl::Status DoRopeWrite(Stream& stream, const RopeWriteArgs& args) = 0;
  virtual absl::Status DoAttention(Stream& stream, const AttentionArgs& args) = 0;
  virtual absl::Status DoAttentionMass(Stream& stream, const AttentionMassArgs& args) = 0;
  virtual absl::Status DoGatherRows(Stream& stream, const GatherRowsArgs& args) = 0;
  virtual absl::Status DoRowNorm(Stream& stream, const RowNormArgs& args) = 0;
};

struct ReferenceOptions {
  // K and V are rounded to bf16 as they enter the cache, as on every backend. False keeps them in f32 there
  // (ReadKv still gives bf16), for comparison with other implementations to f32 accuracy.
  bool round_kv = true;
};
// kernels/reference: scalar, f64 accumulation, f32 activations: the oracle.
std::unique_ptr<Backend> MakeReferenceBackend(const ReferenceOptions& options = {});

struct CpuOptions {
  int threads = 0;  // 0: all cores that the process may use
  // "" picks the best the machine has; "avx2", "avx512", "avx512_bf16", "amx_bf16" ask for one (tests,
  // comparisons).
  std::string isa;
};
// kernels/cpu. INVALID_ARGUMENT names an ISA that is unknown or that this machine lacks.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const CpuOptions& options);

struct CudaOptions {
  int device = 0;
};
// kernels/cuda or its stub kernels/no_cuda (UNIMPLEMENTED: this build has no CUDA).
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const CudaOptions& options);

}  // namespace ridgefill::kernels
