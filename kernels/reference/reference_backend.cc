#include "kernels/reference/reference_backend.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "engine/base/check.h"
#include "engine/base/float16.h"
#include "engine/base/status.h"
#include "kernels/api/check_args.h"

namespace ridgefill::kernels {
namespace reference {

float Load(const TensorView& t, int64_t i) {
  if (t.dtype == DType::kF32) return t.as<float>()[i];
  RF_CHECK(t.dtype == DType::kBF16);
  return base::BF16ToF32(t.as<uint16_t>()[i]);
}

void Store(const TensorView& t, int64_t i, float value) {
  if (t.dtype == DType::kF32) {
    t.as<float>()[i] = value;
    return;
  }
  RF_CHECK(t.dtype == DType::kBF16);
  t.as<uint16_t>()[i] = base::F32ToBF16(value);
}

namespace {

absl::Status OutOfMemory(absl::string_view what, int64_t bytes) {
  return base::Error(
      absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY",
      absl::StrCat("reference backend: ", what, " needs ", bytes, " bytes, which the host refused"));
}

// Refuses what the machine could never hold, before an allocator that aborts (a sanitizer's) is asked.
bool Fits(int64_t bytes) { return bytes / sysconf(_SC_PAGESIZE) < sysconf(_SC_PHYS_PAGES); }

}  // namespace

ReferenceLinear::ReferenceLinear(const LinearSource& source)
    : out_(source.out_features),
      in_(source.in_features),
      prompt_(source.for_prompt),
      decode_(source.for_decode),
      weight_(static_cast<size_t>(out_ * in_)),
      bias_(source.bias.begin(), source.bias.end()) {
  std::vector<float> row(in_);
  for (int64_t o = 0; o < out_; ++o) {
    source.read_rows(o, 1, row.data());
    for (int64_t i = 0; i < in_; ++i) weight_[i * out_ + o] = row[i];
  }
}

ReferenceBatch::ReferenceBatch(const BatchSpec& spec)
    : positions_(spec.positions.begin(), spec.positions.end()) {
  for (const SequenceRows& seq : spec.sequences) {
    sequence_.insert(sequence_.end(), seq.row_count, static_cast<int32_t>(tables_.size()));
    tables_.emplace_back(seq.block_table.begin(), seq.block_table.end());
    for (int32_t block : seq.block_table) max_block_ = std::max(max_block_, block);
  }
}

int32_t ReferenceBatch::max_position() const {
  return positions_.empty() ? -1 : *std::max_element(positions_.begin(), positions_.end());
}

ReferenceBackend::ReferenceBackend(const ReferenceOptions& options) : options_(options) {
  capabilities_.name = "reference";
  capabilities_.isa = "scalar";
}

absl::StatusOr<Tensor> ReferenceBackend::Allocate(DType dtype, absl::Span<const int64_t> dims) {
  if (dims.size() > kMaxRank) return BadArgs(absl::StrCat("allocate: rank ", dims.size()));
  TensorView view{nullptr, dtype, static_cast<int>(dims.size()), {}};
  std::copy(dims.begin(), dims.end(), view.dims.begin());
  if (Fits(view.bytes())) view.data = std::malloc(std::max<int64_t>(view.bytes(), 1));
  if (view.data == nullptr) return OutOfMemory(view.DebugString(), view.bytes());
  return Tensor(view, [](void* p) { std::free(p); });
}

absl::StatusOr<std::unique_ptr<PackedLinear>> ReferenceBackend::PackLinear(const LinearSource& source) {
  RF_RETURN_IF_ERROR(Check(source));
  try {
    return std::make_unique<ReferenceLinear>(source);
  } catch (const std::bad_alloc&) {
    return OutOfMemory("a linear layer", source.out_features * source.in_features * 4);
  }
}

absl::StatusOr<std::unique_ptr<KvCache>> ReferenceBackend::NewKvCache(const KvCacheSpec& spec) {
  RF_RETURN_IF_ERROR(Check(spec));
  if (!Fits(spec.total_bytes())) return OutOfMemory("the KV cache", spec.total_bytes());
  try {
    return std::make_unique<ReferenceKvCache>(spec, options_.round_kv);
  } catch (const std::bad_alloc&) {
    return OutOfMemory("the KV cache", 2 * spec.total_bytes());
  }
}

absl::StatusOr<std::unique_ptr<Batch>> ReferenceBackend::NewBatch(const BatchSpec& spec, const RopeSpec*) {
  RF_RETURN_IF_ERROR(Check(spec));
  return std::make_unique<ReferenceBatch>(spec);
}

absl::Status ReferenceBackend::DoCopyFromHost(Stream&, absl::Span<const char> from, const TensorView& to) {
  if (!from.empty()) std::memcpy(to.data, from.data(), from.size());
  return absl::OkStatus();
}

absl::Status ReferenceBackend::DoCopyToHost(Stream&, const TensorView& from, absl::Span<char> to) {
  if (!to.empty()) std::memcpy(to.data(), from.data, to.size());
  return absl::OkStatus();
}

absl::Status ReferenceBackend::DoReadKv(Stream&, const KvCache& cache, const KvSpan& span,
                                        absl::Span<char> to) {
  const auto& kv = static_cast<const ReferenceKvCache&>(cache);
  const int64_t n = kv.token_elements();
  auto* out = reinterpret_cast<uint16_t*>(to.data());
  for (int64_t t = 0; t < span.token_count; ++t) {
    const int64_t p = span.token_begin + t;
    const int32_t block = span.block_table[p / kBlockTokens];
    const float* k = kv.k(span.layer, block, p % kBlockTokens);
    const float* v = kv.v(span.layer, block, p % kBlockTokens);
    std::transform(k, k + n, out + t * n, base::F32ToBF16);
    std::transform(v, v + n, out + (span.token_count + t) * n, base::F32ToBF16);
  }
  return absl::OkStatus();
}

absl::Status ReferenceBackend::DoWriteKv(Stream&, KvCache& cache, const KvSpan& span,
                                         absl::Span<const char> from) {
  auto& kv = static_cast<ReferenceKvCache&>(cache);
  const int64_t n = kv.token_elements();
  const auto* in = reinterpret_cast<const uint16_t*>(from.data());
  for (int64_t t = 0; t < span.token_count; ++t) {
    const int64_t p = span.token_begin + t;
    const int32_t block = span.block_table[p / kBlockTokens];
    std::transform(in + t * n, in + (t + 1) * n, kv.k(span.layer, block, p % kBlockTokens), base::BF16ToF32);
    const uint16_t* v = in + (span.token_count + t) * n;
    std::transform(v, v + n, kv.v(span.layer, block, p % kBlockTokens), base::BF16ToF32);
  }
  return absl::OkStatus();
}

}  // namespace reference

std::unique_ptr<Backend> MakeReferenceBackend(const ReferenceOptions& options) {
  return std::make_unique<reference::ReferenceBackend>(options);
}

}  // namespace ridgefill::kernels
