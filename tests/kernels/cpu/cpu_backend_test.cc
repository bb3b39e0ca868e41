// What only the CPU backend has: options, instruction sets side by side, counted memory.
#include "kernels/cpu/cpu_backend.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/isa.h"

namespace ridgefill::kernels::cpu {
namespace {

using testing::HasSubstr;

TEST(CpuBackendTest, NamesTheIsaItLacks) {
  const auto backend = MakeCpuBackend({1, "sse9"});
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("sse9"));
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("avx512_bf16"));
  EXPECT_EQ(MakeCpuBackend({-1, ""}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CpuBackendTest, PicksTheBestIsaAndCountsThreads) {
  auto backend = MakeCpuBackend({3, ""});
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->capabilities().threads, 3);
  EXPECT_TRUE((*backend)->capabilities().batch_invariant);
  EXPECT_THAT((*backend)->capabilities().isa, testing::AnyOf("avx2", "avx512", "avx512_bf16", "amx_bf16"));
  EXPECT_GE((*MakeCpuBackend({}))->capabilities().threads, 1);
}

// Bytes of a product whose rows, depth and columns all end within a tile.
std::string LinearBytes(Backend& backend) {
  const int64_t rows = 77, in = 1094, out = 200;
  auto stream = backend.NewStream();
  LinearSource source;
  source.out_features = out;
  source.in_features = in;
  source.read_rows = [&](int64_t begin, int64_t count, float* to) {
    for (int64_t i = 0; i < count * in; ++i) to[i] = static_cast<float>((begin * in + i) % 89) / 64 - 0.7f;
  };
  auto weight = *backend.PackLinear(source);
  Tensor x = *backend.Allocate(DType::kF32, {rows, in}), y = *backend.Allocate(DType::kF32, {rows, out});
  for (int64_t i = 0; i < rows * in; ++i) x.view().as<float>()[i] = static_cast<float>(i % 101) / 32 - 1.6f;
  Tensor act = *backend.Allocate(backend.capabilities().activation_dtype, {rows, in});
  EXPECT_TRUE(backend.Cast(*stream, {x.view(), act.view()}).ok());
  EXPECT_TRUE(backend.Linear(*stream, {act.view(), weight.get(), y.view(), false, Phase::kPrompt}).ok());
  return std::string(y.view().as<char>(), y.view().bytes());
}

// Bits depend on the ISA, never on the number of threads.
TEST(CpuBackendTest, ThreadsDoNotChangeBits) {
  const std::string one = LinearBytes(**MakeCpuBackend({1, ""}));
  for (int threads : {2, 5}) EXPECT_EQ(LinearBytes(**MakeCpuBackend({threads, ""})), one) << threads;
}

TEST(CpuBackendTest, OddWidthsAreRefusedByName) {
  auto backend = *MakeCpuBackend({1, ""});
  LinearSource source;
  source.out_features = source.in_features = 3;
  source.read_rows = [](int64_t, int64_t, float*) {};
  const auto packed = backend->PackLinear(source);
  EXPECT_EQ(packed.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(packed.status().message()), HasSubstr("3 inputs"));
}

TEST(HostMemoryTest, CountsWhatItHolds) {
  HostMemory memory;
  {
    auto small = memory.Allocate(100, "small"), large = memory.Allocate(3 << 20, "large");
    ASSERT_TRUE(small.ok() && large.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(small->get()) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(large->get()) % 64, 0u);
    EXPECT_GE(memory.bytes_held(), 100 + (3 << 20));
    large->get()[(3 << 20) - 1] = 1;
  }
  EXPECT_EQ(memory.bytes_held(), 0);
  const auto refused = memory.Allocate(int64_t{1} << 50, "the weights");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("the weights needs 1125899906842624 bytes"));
}

}  // namespace
}  // namespace ridgefill::kernels::cpu
