// Ops of the CPU backend at the shapes of SmolLM2-135M, as GFLOP/s and as a share of the f32 multiply-add
// peak that the same threads reach just before (`of_peak`; above 1 is possible with bf16 dot products).
//
//   ridgefill-kernels-bench [--benchmark_filter=...] [--threads=N] [--isa=avx2|avx512|avx512_bf16|amx_bf16]
//
// Forward/N is a whole prefill of N tokens in chunks of 512 over random weights: everything that a model
// does between token ids and the last row's hidden state.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/rng.h"
#include "kernels/api/backend.h"
#include "tests/bench/kernels/fma_peak.h"

namespace ridgefill::bench {
namespace {

using namespace kernels;  // NOLINT: a program of its own

constexpr int64_t kWidth = 576, kFfn = 1536, kVocab = 49152, kChunk = 512;
constexpr int kLayers = 30, kQHeads = 9, kKvHeads = 3, kHeadDim = 64;
constexpr int64_t kKvWidth = int64_t{kKvHeads} * kHeadDim, kQkv = kWidth + 2 * kKvWidth;

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

// The backend and what the benchmarks share.
struct Bench {
  explicit Bench(const CpuOptions& options)
      : backend(Must(MakeCpuBackend(options))),
        stream(backend->NewStream()),
        act(backend->capabilities().activation_dtype) {
    rope.head_dim = kHeadDim;
    for (int i = 0; i < kHeadDim / 2; ++i) rope.inverse_frequencies.push_back(1.0 / (1 << (i / 2)));
  }
  Tensor Make(DType dtype, const std::vector<int64_t>& dims) {
    Tensor t = Must(backend->Allocate(dtype, dims));
    std::vector<char> bytes(t.view().bytes());
    base::Rng rng(1);
    for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
      // 0.5 <= |x| < 1, either as one f32 or as two bf16.
      const uint32_t word = 0x3f003f00u | (static_cast<uint32_t>(rng.NextU64()) & 0x807f807fu);
      std::memcpy(&bytes[i], &word, 4);
    }
    Must(backend->CopyFromHost(*stream, bytes, t.view()));
    Must(backend->Synchronize(*stream));
    return t;
  }
  std::unique_ptr<PackedLinear> Weight(int64_t out, int64_t in) {
    LinearSource source;
    source.out_features = out;
    source.in_features = in;
    source.read_rows = [in](int64_t begin, int64_t count, float* to) {
      base::Rng rng(begin);
      for (int64_t i = 0; i < count * in; ++i) to[i] = static_cast<float>(rng.NextDouble() - 0.5) * 0.05f;
    };
    return Must(backend->PackLinear(source));
  }
  std::unique_ptr<KvCache> Cache(int layers, int64_t tokens) {
    return Must(
        backend->NewKvCache({layers, (tokens + kBlockTokens - 1) / kBlockTokens, kKvHeads, kHeadDim}));
  }
  std::unique_ptr<Batch> Rows(int64_t begin, int64_t count, Phase phase) {
    std::vector<int32_t> positions(count), blocks((begin + count + kBlockTokens - 1) / kBlockTokens);
    for (int64_t i = 0; i < count; ++i) positions[i] = static_cast<int32_t>(begin + i);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
    const std::vector<SequenceRows> sequences = {{0, count, blocks}};
    return Must(backend->NewBatch({positions, sequences, phase}, &rope));
  }
  // Reports `flops` an iteration.
  void Report(benchmark::State& state, double flops) {
    const double peak = FmaPeak(backend->capabilities().threads, 0.2);
    using benchmark::Counter;
    state.counters["GFLOPS"] = Counter(flops / 1e9, Counter::kIsIterationInvariantRate);
    state.counters["of_peak"] = Counter(flops / 1e9 / peak, Counter::kIsIterationInvariantRate);
  }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  DType act;
  RopeSpec rope;
};

void Linear(benchmark::State& state, Bench& b, int64_t in, int64_t out, Phase phase) {
  const int64_t rows = state.range(0);
  auto weight = b.Weight(out, in);
  Tensor x = b.Make(b.act, {rows, in}), y = b.Make(b.act, {rows, out});
  for (auto _ : state) Must(b.backend->Linear(*b.stream, {x.view(), weight.get(), y.view(), false, phase}));
  b.Report(state, 2.0 * static_cast<double>(rows * in * out));
  if (phase == Phase::kDecode) {
    state.SetBytesProcessed(state.iterations() * weight->bytes());  // weights alone
  }
}

// The last chunk of a prompt, or one decode row, over a full cache: attention, or what its tokens receive.
void Attention(benchmark::State& state, Bench& b, Phase phase, bool mass = false) {
  const int64_t tokens = state.range(0), rows = phase == Phase::kDecode ? 1 : std::min(tokens, kChunk);
  auto cache = b.Cache(1, tokens);
  for (int64_t t = 0; t < tokens; t += kChunk) {
    const int64_t count = std::min(kChunk, tokens - t);
    auto batch = b.Rows(t, count, phase);
    Tensor kv = b.Make(DType::kF32, {count, 2 * kKvWidth});
    Must(b.backend->RopeWrite(*b.stream, {batch.get(), &b.rope, {}, kv.view(), cache.get(), 0}));
  }
  auto batch = b.Rows(tokens - rows, rows, phase);
  Tensor q = b.Make(b.act, {rows, kWidth}), out = b.Make(b.act, {rows, kWidth});
  Tensor received = b.Make(DType::kF32, {kKvHeads, tokens});
  AttentionMassArgs mass_args;
  mass_args.batch = batch.get();
  mass_args.q = q.view();
  mass_args.cache = cache.get();
  mass_args.scale = 0.125f;
  mass_args.mass = received.view();
  for (auto _ : state) {
    Must(mass ? b.backend->AttentionMass(*b.stream, mass_args)
              : b.backend->Attention(*b.stream, {batch.get(), q.view(), cache.get(), 0, 0.125f, out.view()}));
  }
  const double visible = static_cast<double>(rows) * (tokens - rows) + rows * (rows + 1) / 2.0;
  b.Report(state, 4.0 * visible * kQHeads * kHeadDim);
}

void RowOps(benchmark::State& state, Bench& b) {
  const int64_t rows = kChunk;
  Tensor x = b.Make(DType::kF32, {rows, kWidth}), weight = b.Make(DType::kF32, {kWidth});
  Tensor normed = b.Make(b.act, {rows, kWidth}), gate_up = b.Make(b.act, {rows, 2 * kFfn});
  Tensor ffn = b.Make(b.act, {rows, kFfn}), kv = b.Make(DType::kF32, {rows, 2 * kKvWidth});
  auto cache = b.Cache(1, rows);
  auto batch = b.Rows(0, rows, Phase::kPrompt);
  for (auto _ : state) {  // one layer's worth
    Must(b.backend->RmsNorm(*b.stream, {x.view(), weight.view(), 1e-5f, normed.view()}));
    Must(b.backend->RmsNorm(*b.stream, {x.view(), weight.view(), 1e-5f, normed.view()}));
    Must(b.backend->SwiGlu(*b.stream, {gate_up.view(), ffn.view()}));
    Must(b.backend->RopeWrite(*b.stream, {batch.get(), &b.rope, normed.view(), kv.view(), cache.get(), 0}));
  }
  state.SetItemsProcessed(state.iterations() * rows);
}

void Gram(benchmark::State& state, Bench& b) {
  const int64_t rows = 4096, m = kWidth, n = 2 * kKvWidth * 11;
  Tensor x = b.Make(DType::kF32, {rows, m}), y = b.Make(DType::kF32, {rows, n}),
         c = b.Make(DType::kF32, {m, n});
  for (auto _ : state) Must(b.backend->Gram(*b.stream, {x.view(), y.view(), c.view()}));
  b.Report(state, 2.0 * static_cast<double>(rows * m * n));
}

// A Llama-shaped stack of random weights.
class Model {
 public:
  explicit Model(Bench& b)
      : b_(b),
        norm_(b.Make(DType::kF32, {kWidth})),
        h_(b.Make(DType::kF32, {kChunk, kWidth})),
        x_(b.Make(b.act, {kChunk, kWidth})),
        q_(b.Make(b.act, {kChunk, kWidth})),
        kv_(b.Make(DType::kF32, {kChunk, 2 * kKvWidth})),
        gate_up_(b.Make(b.act, {kChunk, 2 * kFfn})),
        ffn_(b.Make(b.act, {kChunk, kFfn})) {
    for (int l = 0; l < kLayers; ++l) {
      layers_.push_back({b.Weight(kQkv - 2 * kKvWidth, kWidth), b.Weight(2 * kKvWidth, kWidth),
                         b.Weight(kWidth, kWidth), b.Weight(2 * kFfn, kWidth), b.Weight(kWidth, kFfn)});
    }
  }
  // Rows [begin, begin + count) through all layers.
  void Run(KvCache& cache, int64_t begin, int64_t count, Phase phase) {
    auto batch = b_.Rows(begin, count, phase);
    const TensorView h = h_.view().Rows(0, count), x = x_.view().Rows(0, count), q = q_.view().Rows(0, count);
    const TensorView kv = kv_.view().Rows(0, count), gate_up = gate_up_.view().Rows(0, count);
    const TensorView ffn = ffn_.view().Rows(0, count);
    Backend& k = *b_.backend;
    Stream& s = *b_.stream;
    for (int l = 0; l < kLayers; ++l) {
      const Layer& w = layers_[l];
      Must(k.RmsNorm(s, {h, norm_.view(), 1e-5f, x}));
      Must(k.Linear(s, {x, w.q.get(), q, false, phase}));
      Must(k.Linear(s, {x, w.kv.get(), kv, false, phase}));
      Must(k.RopeWrite(s, {batch.get(), &b_.rope, q, kv, &cache, l}));
      Must(k.Attention(s, {batch.get(), q, &cache, l, 0.125f, x}));
      Must(k.Linear(s, {x, w.o.get(), h, true, phase}));
      Must(k.RmsNorm(s, {h, norm_.view(), 1e-5f, x}));
      Must(k.Linear(s, {x, w.gate_up.get(), gate_up, false, phase}));
      Must(k.SwiGlu(s, {gate_up, ffn}));
      Must(k.Linear(s, {ffn, w.down.get(), h, true, phase}));
    }
  }

 private:
  struct Layer {
    std::unique_ptr<PackedLinear> q, kv, o, gate_up, down;
  };
  Bench& b_;
  Tensor norm_, h_, x_, q_, kv_, gate_up_, ffn_;
  std::vector<Layer> layers_;
};

void Forward(benchmark::State& state, Bench& b) {
  const int64_t tokens = state.range(0);
  Model model(b);
  auto cache = b.Cache(kLayers, tokens);
  for (auto _ : state) {
    for (int64_t t = 0; t < tokens; t += kChunk)
      model.Run(*cache, t, std::min(kChunk, tokens - t), Phase::kPrompt);
  }
  const double linear = 2.0 * kLayers * kWidth * (kQkv + kWidth + 3.0 * kFfn);
  const double attention = 4.0 * kLayers * kWidth * (tokens + 1) / 2.0;
  b.Report(state, tokens * (linear + attention));
  state.SetItemsProcessed(state.iterations() * tokens);
}

void Register(Bench& b) {
  struct Shape {
    const char* name;
    int64_t in, out;
  };
  for (const Shape& s : {Shape{"qkv", kWidth, kQkv},
                         {"o", kWidth, kWidth},
                         {"gate_up", kWidth, 2 * kFfn},
                         {"down", kFfn, kWidth},
                         {"head", kWidth, kVocab}}) {
    const std::string name = std::string("/") + s.name;
    const bool head = s.out == kVocab;
    const auto add = [&](const std::string& prefix, Phase phase) {
      return benchmark::RegisterBenchmark((prefix + name).c_str(), [&b, s, phase](benchmark::State& state) {
        Linear(state, b, s.in, s.out, phase);
      });
    };
    if (!head) add("Prompt", Phase::kPrompt)->Arg(60)->Arg(64)->Arg(512)->Arg(2048)->UseRealTime();
    add("Decode", Phase::kDecode)->Arg(1)->Arg(16)->UseRealTime();
  }
  benchmark::RegisterBenchmark("PromptAttention",
                               [&b](benchmark::State& s) { Attention(s, b, Phase::kPrompt); })
      ->Arg(512)
      ->Arg(2048)
      ->Arg(8192)
      ->UseRealTime();
  benchmark::RegisterBenchmark("AttentionMass",
                               [&b](benchmark::State& s) { Attention(s, b, Phase::kPrompt, true); })
      ->Arg(512)
      ->Arg(2048)
      ->Arg(8192)
      ->UseRealTime();
  benchmark::RegisterBenchmark("DecodeAttention",
                               [&b](benchmark::State& s) { Attention(s, b, Phase::kDecode); })
      ->Arg(2048)
      ->Arg(8192)
      ->UseRealTime();
  benchmark::RegisterBenchmark("RowOps/512", [&b](benchmark::State& s) { RowOps(s, b); })->UseRealTime();
  benchmark::RegisterBenchmark("Gram/4096", [&b](benchmark::State& s) { Gram(s, b); })->UseRealTime();
  benchmark::RegisterBenchmark("Forward", [&b](benchmark::State& s) { Forward(s, b); })
      ->Arg(512)
      ->Arg(2048)
      ->Arg(8192)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace ridgefill::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  ridgefill::kernels::CpuOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind("--threads=", 0) == 0) options.threads = std::atoi(arg.c_str() + 10);
    if (arg.rfind("--isa=", 0) == 0) options.isa = arg.substr(6);
  }
  ridgefill::bench::Bench bench(options);
  const auto& have = bench.backend->capabilities();
  std::printf("isa %s, %d threads, f32 multiply-add peak %.0f GFLOP/s\n", have.isa.c_str(), have.threads,
              ridgefill::bench::FmaPeak(have.threads, 0.5));
  ridgefill::bench::Register(bench);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
