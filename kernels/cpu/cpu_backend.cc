#include "kernels/cpu/cpu_backend.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "engine/base/check.h"
#include "engine/base/float16.h"
#include "engine/base/status.h"
#include "kernels/api/check_args.h"
#include "kernels/cpu/isa.h"

namespace ridgefill::kernels {
namespace cpu {
namespace {

int AllowedCpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max<int>(std::thread::hardware_concurrency(), 1);
}

void PackBf16Pairs(absl::Span<const float> rows, int64_t in, int64_t count, uint32_t* panel) {
  for (int64_t pair = 0; pair < in / 2; ++pair) {
    for (int64_t c = 0; c < count; ++c) {
      const uint32_t low = base::F32ToBF16(rows[c * in + 2 * pair]);
      panel[pair * kPanel + c] = low | static_cast<uint32_t>(base::F32ToBF16(rows[c * in + 2 * pair + 1]))
                                           << 16;
    }
  }
}

void PackF16(absl::Span<const float> rows, int64_t in, int64_t count, uint16_t* panel) {
  for (int64_t k = 0; k < in; ++k) {
    for (int64_t c = 0; c < count; ++c) panel[k * kPanel + c] = base::F32ToF16(rows[c * in + k]);
  }
}

// The form that keeps most of some weights: bf16 where it keeps all or f16 would overflow.
PanelForm BestForm(absl::Span<const float> weights) {
  constexpr float kLargestF16 = 65504;
  bool all_bf16 = true;
  for (float w : weights) {
    if (!(std::abs(w) <= kLargestF16)) return PanelForm::kBf16Pairs;
    all_bf16 = all_bf16 && base::BF16ToF32(base::F32ToBF16(w)) == w;
  }
  return all_bf16 ? PanelForm::kBf16Pairs : PanelForm::kF16;
}

// Weight rows [begin, begin + 64) as one panel; missing rows are zero.
PanelForm PackPanel(const LinearSource& source, int64_t begin, bool may_be_f16, uint32_t* panel) {
  const int64_t in = source.in_features, count = std::min<int64_t>(kPanel, source.out_features - begin);
  std::vector<float> rows(count * in);
  source.read_rows(begin, count, rows.data());
  std::fill_n(panel, in / 2 * kPanel, 0u);
  const PanelForm form = may_be_f16 ? BestForm(rows) : PanelForm::kBf16Pairs;
  if (form == PanelForm::kF16) {
    PackF16(rows, in, count, reinterpret_cast<uint16_t*>(panel));
  } else {
    PackBf16Pairs(rows, in, count, panel);
  }
  return form;
}

}  // namespace

CpuBatch::CpuBatch(const BatchSpec& spec, const RopeSpec* rope)
    : positions(spec.positions.begin(), spec.positions.end()) {
  for (const SequenceRows& seq : spec.sequences) {
    sequence_of.insert(sequence_of.end(), seq.row_count, static_cast<int32_t>(sequences.size()));
    sequences.push_back({seq.row_begin, seq.row_count, {seq.block_table.begin(), seq.block_table.end()}});
    for (int32_t block : seq.block_table) max_block_ = std::max(max_block_, block);
  }
  for (int32_t position : positions) max_position_ = std::max(max_position_, position);
  if (rope == nullptr) return;
  frequencies = rope->inverse_frequencies;
  cosine.resize(positions.size() * frequencies.size());
  sine.resize(cosine.size());
  for (size_t r = 0; r < positions.size(); ++r) {
    for (size_t i = 0; i < frequencies.size(); ++i) {
      const double angle = positions[r] * frequencies[i];
      cosine[r * frequencies.size() + i] = static_cast<float>(std::cos(angle));
      sine[r * frequencies.size() + i] = static_cast<float>(std::sin(angle));
    }
  }
}

CpuBackend::CpuBackend(const KernelTable* kernels, int threads)
    : kernels_(kernels), pool_(threads), scratch_(threads) {
  capabilities_.name = "cpu";
  capabilities_.isa = kernels->isa;
  capabilities_.threads = threads;
  capabilities_.activation_dtype = kernels->bf16_activations ? DType::kBF16 : DType::kF32;
}

absl::StatusOr<Tensor> CpuBackend::Allocate(DType dtype, absl::Span<const int64_t> dims) {
  if (dims.size() > kMaxRank) return BadArgs(absl::StrCat("allocate: rank ", dims.size()));
  TensorView view{nullptr, dtype, static_cast<int>(dims.size()), {}};
  std::copy(dims.begin(), dims.end(), view.dims.begin());
  RF_ASSIGN_OR_RETURN(HostMemory::Buffer buffer, memory_.Allocate(view.bytes(), view.DebugString()));
  view.data = buffer.get();
  auto release = buffer.get_deleter();
  buffer.release();
  return Tensor(view, [release](void* p) { release(static_cast<char*>(p)); });
}

absl::StatusOr<std::unique_ptr<PackedLinear>> CpuBackend::PackLinear(const LinearSource& source) {
  RF_RETURN_IF_ERROR(Check(source));
  if (source.in_features % 2 != 0) {
    return base::Error(absl::StatusCode::kUnimplemented, "ODD_WIDTH",
                       absl::StrCat("cpu backend: a linear layer of ", source.in_features,
                                    " inputs; only even widths are supported"));
  }
  auto linear = std::make_unique<CpuLinear>();
  linear->out = source.out_features;
  linear->in = source.in_features;
  linear->for_prompt = source.for_prompt;
  linear->for_decode = source.for_decode;
  linear->bias.assign(source.bias.begin(), source.bias.end());
  RF_ASSIGN_OR_RETURN(linear->weight, memory_.Allocate(linear->panels() * linear->panel_words() * 4,
                                                       absl::StrCat("a linear layer [", source.out_features,
                                                                    ", ", source.in_features, "]")));
  linear->forms.resize(linear->panels());
  pool_.ParallelFor(linear->panels(), [&](int64_t i, int) {
    linear->forms[i] = PackPanel(source, i * kPanel, !kernels_->bf16_activations, linear->panel(i));
  });
  return linear;
}

absl::StatusOr<std::unique_ptr<KvCache>> CpuBackend::NewKvCache(const KvCacheSpec& spec) {
  RF_RETURN_IF_ERROR(Check(spec));
  const int64_t bytes = CpuKvCache::HeadWords(spec) * 4 * spec.kv_heads * spec.blocks * spec.layers;
  RF_ASSIGN_OR_RETURN(
      HostMemory::Buffer memory,
      memory_.Allocate(bytes, absl::StrCat("a KV cache of ", spec.layers, " layers and ", spec.blocks,
                                           " blocks of ", kBlockTokens, " tokens")));
  return std::make_unique<CpuKvCache>(spec, std::move(memory));
}

absl::StatusOr<std::unique_ptr<Batch>> CpuBackend::NewBatch(const BatchSpec& spec, const RopeSpec* rope) {
  RF_RETURN_IF_ERROR(Check(spec));
  return std::make_unique<CpuBatch>(spec, rope);
}

absl::Status CpuBackend::DoCopyFromHost(Stream&, absl::Span<const char> from, const TensorView& to) {
  if (!from.empty()) std::memcpy(to.data, from.data(), from.size());
  return absl::OkStatus();
}

absl::Status CpuBackend::DoCopyToHost(Stream&, const TensorView& from, absl::Span<char> to) {
  if (!to.empty()) std::memcpy(to.data(), from.data, to.size());
  return absl::OkStatus();
}

void CpuBackend::ForRows(int64_t rows, int64_t row_work, absl::FunctionRef<void(int64_t, int64_t)> body) {
  constexpr int64_t kPieceWork = 16384;  // a few microseconds
  const int64_t piece = std::max<int64_t>(1, kPieceWork / std::max<int64_t>(row_work, 1));
  pool_.ParallelFor((rows + piece - 1) / piece,
                    [&](int64_t i, int) { body(i * piece, std::min(rows, (i + 1) * piece)); });
}

float* CpuBackend::Scratch(int thread, int64_t floats) {
  ScratchArea& area = scratch_[thread];
  if (area.floats < floats) {
    const int64_t bytes = (floats * 4 + 63) / 64 * 64;
    area.memory = {static_cast<float*>(std::aligned_alloc(64, bytes)), std::free};
    RF_CHECK(area.memory != nullptr);
    area.floats = floats;
  }
  return area.memory.get();
}

absl::Status CpuBackend::CheckActivation(absl::string_view op, const TensorView& t) const {
  if (t.dtype == capabilities_.activation_dtype) return absl::OkStatus();
  return BadArgs(absl::StrCat(op, ": ", t.DebugString(), " is not of this backend's activation type ",
                              absl::StrCat(Name(capabilities_.activation_dtype))));
}

}  // namespace cpu

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const CpuOptions& options) {
  RF_ASSIGN_OR_RETURN(const cpu::KernelTable* kernels, cpu::KernelsFor(options.isa));
  if (options.threads < 0 || options.threads > 1024) {
    return base::Error(absl::StatusCode::kInvalidArgument, "THREADS_RANGE",
                       absl::StrCat("cpu backend: threads must be in [0, 1024], got ", options.threads));
  }
  const int threads = options.threads == 0 ? cpu::AllowedCpus() : options.threads;
  return std::make_unique<cpu::CpuBackend>(kernels, threads);
}

}  // namespace ridgefill::kernels
