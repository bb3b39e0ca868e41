// One backend under test with helpers that move host vectors in and out, and f64 oracles' rounding units.
//
// Inputs are bf16-representable throughout, so that every backend starts from the same numbers and a
// tolerance counts only what the op itself may lose.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/float16.h"
#include "engine/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/api/backend.h"

namespace ridgefill::kernels {

struct BackendParam {
  std::string name;  // "reference", "cuda", or "cpu_<isa>"
  absl::StatusOr<std::unique_ptr<Backend>> Make() const {
    if (name == "reference") return MakeReferenceBackend();
    if (name == "cuda") return MakeCudaBackend({});
    CpuOptions options;
    options.threads = 3;
    options.isa = name.substr(4);
    return MakeCpuBackend(options);
  }
};

// Every backend and instruction set of the project; those that this machine or build lacks are skipped.
inline std::vector<BackendParam> AllBackends() {
  return {{"reference"},
          {"cpu_avx2"},
          {"cpu_avx512"},
          {"cpu_avx512_bf16"},
          {"cpu_avx512_bf16_emulated"},
          {"cpu_amx_bf16"},
          {"cpu_amx_bf16_emulated"},
          {"cuda"}};
}

// Unit roundoffs.
inline constexpr double kF32Unit = 0x1p-24;
inline constexpr double kBf16Unit = 0x1p-8;
inline constexpr double kF16Unit = 0x1p-11;
inline constexpr double kF16Subnormal = 0x1p-25;  // half a step below 2^-14, absolute

// Random but the same on every run.
class Values {
 public:
  explicit Values(uint64_t seed) : rng_(seed) {}
  // Roughly uniform in [-range, range], exactly representable in bf16.
  float Next(double range = 1.0) {
    return base::BF16ToF32(base::F32ToBF16(static_cast<float>((2 * rng_.NextDouble() - 1) * range)));
  }
  std::vector<float> Many(int64_t n, double range = 1.0) {
    std::vector<float> out(n);
    for (float& v : out) v = Next(range);
    return out;
  }
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng_.NextBelow(high - low + 1));
  }

 private:
  base::Rng rng_;
};

class BackendTest : public testing::TestWithParam<BackendParam> {
 protected:
  void SetUp() override {
    auto backend = GetParam().Make();
    if (!backend.ok()) GTEST_SKIP() << backend.status().message();
    backend_ = *std::move(backend);
    stream_ = backend_->NewStream();
    act_ = backend_->capabilities().activation_dtype;
  }

  Tensor Empty(DType dtype, const std::vector<int64_t>& dims) {
    auto t = backend_->Allocate(dtype, dims);
    EXPECT_TRUE(t.ok()) << t.status();
    return *std::move(t);
  }
  Tensor Upload(DType dtype, const std::vector<int64_t>& dims, const std::vector<float>& values) {
    Tensor t = Empty(dtype, dims);
    std::vector<char> bytes(t.view().bytes());
    EXPECT_EQ(t.view().elements(), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t half = base::F32ToBF16(values[i]);
      if (dtype == DType::kBF16) std::memcpy(&bytes[2 * i], &half, 2);
      if (dtype == DType::kF32) std::memcpy(&bytes[4 * i], &values[i], 4);
    }
    EXPECT_TRUE(backend_->CopyFromHost(*stream_, bytes, t.view()).ok());
    EXPECT_TRUE(backend_->Synchronize(*stream_).ok());
    return t;
  }
  Tensor UploadIds(const std::vector<int32_t>& ids) {
    Tensor t = Empty(DType::kI32, {static_cast<int64_t>(ids.size())});
    EXPECT_TRUE(
        backend_
            ->CopyFromHost(*stream_, {reinterpret_cast<const char*>(ids.data()), ids.size() * 4}, t.view())
            .ok());
    EXPECT_TRUE(backend_->Synchronize(*stream_).ok());
    return t;
  }
  std::string Bytes(const TensorView& t) {
    std::string bytes(t.bytes(), '\0');
    EXPECT_TRUE(backend_->CopyToHost(*stream_, t, absl::MakeSpan(&bytes[0], bytes.size())).ok());
    EXPECT_TRUE(backend_->Synchronize(*stream_).ok());
    return bytes;
  }
  std::vector<float> Download(const TensorView& t) {
    const std::string bytes = Bytes(t);
    std::vector<float> values(t.elements());
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t half = 0;
      if (t.dtype == DType::kBF16) {
        std::memcpy(&half, &bytes[2 * i], 2);
        values[i] = base::BF16ToF32(half);
      } else {
        std::memcpy(&values[i], &bytes[4 * i], 4);
      }
    }
    return values;
  }

  // A weight [out, in] from values.
  std::unique_ptr<PackedLinear> Pack(int64_t out, int64_t in, const std::vector<float>& w,
                                     const std::vector<float>& bias = {}) {
    LinearSource source;
    source.out_features = out;
    source.in_features = in;
    source.read_rows = [&](int64_t begin, int64_t count, float* to) {
      std::memcpy(to, w.data() + begin * in, count * in * sizeof(float));
    };
    source.bias = bias;
    auto packed = backend_->PackLinear(source);
    EXPECT_TRUE(packed.ok()) << packed.status();
    return *std::move(packed);
  }

  // What rounding to `dtype` may cost, relative.
  static double Unit(DType dtype) { return dtype == DType::kBF16 ? kBf16Unit : kF32Unit; }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  DType act_ = DType::kF32;
};

inline std::string ParamName(const testing::TestParamInfo<BackendParam>& info) { return info.param.name; }

}  // namespace ridgefill::kernels
