// The contract of every op, one body for all backends: values against f64 oracles within tolerances derived
// from dtype and size, exact bytes where the op only moves them, and refusal of wrong shapes.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/contract/backend_harness.h"

namespace ridgefill::kernels {
namespace {

using testing::HasSubstr;

class BackendContractTest : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(All, BackendContractTest, testing::ValuesIn(AllBackends()), ParamName);

struct LinearShape {
  int64_t rows, in, out;
};

TEST_P(BackendContractTest, Linear) {
  Values values(1);
  const std::vector<LinearShape> shapes = {{1, 64, 64},   {3, 62, 65},   {7, 576, 130}, {13, 1026, 64},
                                           {64, 128, 63}, {65, 48, 200}, {250, 96, 70}, {33, 2050, 17}};
  for (const LinearShape& s : shapes) {
    for (Phase phase : {Phase::kPrompt, Phase::kDecode}) {
      const auto x = values.Many(s.rows * s.in), w = values.Many(s.out * s.in), bias = values.Many(s.out);
      const auto old = values.Many(s.rows * s.out, 8.0);
      const bool biased = s.in % 4 == 0, accumulate = s.rows % 2 == 1;
      auto packed = Pack(s.out, s.in, w, biased ? bias : std::vector<float>{});
      Tensor tx = Upload(act_, {s.rows, s.in}, x);
      Tensor ty = Upload(accumulate ? DType::kF32 : act_, {s.rows, s.out}, old);
      LinearArgs args;
      args.x = tx.view();
      args.weight = packed.get();
      args.y = ty.view();
      args.accumulate = accumulate;
      args.phase = phase;
      ASSERT_TRUE(backend_->Linear(*stream_, args).ok());
      const auto y = Download(ty.view());
      for (int64_t r = 0; r < s.rows; ++r) {
        for (int64_t o = 0; o < s.out; ++o) {
          double want = (accumulate ? old[r * s.out + o] : 0.0) + (biased ? bias[o] : 0.0),
                 size = std::abs(want);
          for (int64_t i = 0; i < s.in; ++i) {
            want += double{x[r * s.in + i]} * w[o * s.in + i];
            size += std::abs(double{x[r * s.in + i]} * w[o * s.in + i]);
          }
          // Each of in + 2 additions rounds by at most one unit of the sum of magnitudes; then the store.
          const double tolerance =
              static_cast<double>(s.in + 2) * kF32Unit * size + Unit(ty.view().dtype) * std::abs(want);
          ASSERT_NEAR(y[r * s.out + o], want, tolerance)
              << s.rows << "x" << s.in << "x" << s.out << " row " << r << " out " << o;
        }
      }
    }
  }
}

// Weights off the bf16 grid keep 8 bits, and 11 where activations are f32 and half precision can hold them.
TEST_P(BackendContractTest, LinearRoundsWeightsAtMostToSixteenBits) {
  const int64_t out = 130;
  Values values(2);
  for (const float largest : {0.001f, 1.0f, 60000.0f, 70000.0f, 1e9f}) {
    for (auto [rows, in] :
         {std::pair<int64_t, int64_t>{1, 200}, {5, 200}, {66, 200}, {5, 1030}, {66, 1030}}) {
      const auto x = values.Many(rows * in);
      std::vector<float> w = values.Many(out * in);
      for (float& v : w) v *= largest * (1.0f - 1.0f / 300);
      const double unit = act_ == DType::kF32 && largest < 65504 ? kF16Unit : kBf16Unit;
      auto packed = Pack(out, in, w);
      EXPECT_GE(packed->bytes(), out * in * 2);
      Tensor tx = Upload(act_, {rows, in}, x), ty = Empty(DType::kF32, {rows, out});
      LinearArgs args{tx.view(), packed.get(), ty.view(), false, Phase::kPrompt};
      ASSERT_TRUE(backend_->Linear(*stream_, args).ok());
      const auto y = Download(ty.view());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < out; ++o) {
          double want = 0, size = 0, tiny = 0;
          for (int64_t i = 0; i < in; ++i) {
            want += double{x[r * in + i]} * w[o * in + i];
            size += std::abs(double{x[r * in + i]} * w[o * in + i]);
            tiny += std::abs(double{x[r * in + i]}) * kF16Subnormal;
          }
          // Weight rounding and in additions, both in units of the sum of magnitudes.
          ASSERT_NEAR(y[r * out + o], want, (unit + static_cast<double>(in) * kF32Unit) * size + tiny)
              << rows << "x" << in << " weights up to " << largest << " row " << r << " out " << o;
        }
      }
    }
  }
}

TEST_P(BackendContractTest, Gram) {
  Values values(3);
  for (auto [rows, m, n] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {37, 65, 70}, {1100, 50, 130}}) {
    const auto x = values.Many(rows * m), y = values.Many(rows * n);
    Tensor tx = Upload(DType::kF32, {rows, m}, x), ty = Upload(DType::kF32, {rows, n}, y);
    Tensor tc = Empty(DType::kF32, {m, n});
    ASSERT_TRUE(backend_->Gram(*stream_, {tx.view(), ty.view(), tc.view()}).ok());
    const auto c = Download(tc.view());
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double want = 0, size = 0;
        for (int64_t r = 0; r < rows; ++r) {
          want += double{x[r * m + i]} * y[r * n + j];
          size += std::abs(double{x[r * m + i]} * y[r * n + j]);
        }
        ASSERT_NEAR(c[i * n + j], want, rows * kF32Unit * size) << i << "," << j;  // one rounding an addition
      }
    }
  }
}

TEST_P(BackendContractTest, RmsNormAndRowNorm) {
  Values values(4);
  for (int64_t d : {2, 30, 64, 576, 1000}) {
    const int64_t rows = 19;
    const auto x = values.Many(rows * d, 4.0), weight = values.Many(d);
    Tensor tx = Upload(DType::kF32, {rows, d}, x), tw = Upload(DType::kF32, {d}, weight);
    Tensor norm = Empty(DType::kF32, {rows});
    ASSERT_TRUE(backend_->RowNorm(*stream_, {tx.view(), norm.view()}).ok());
    const auto norms = Download(norm.view());
    for (DType dtype : {act_, DType::kF32}) {
      Tensor to = Empty(dtype, {rows, d});
      ASSERT_TRUE(backend_->RmsNorm(*stream_, {tx.view(), tw.view(), 1e-5f, to.view()}).ok());
      const auto out = Download(to.view());
      for (int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (int64_t i = 0; i < d; ++i) sum += double{x[r * d + i]} * x[r * d + i];
        // d roundings in a sum of positive terms, halved by the root; the root, a division and two products.
        const double relative = (0.5 * static_cast<double>(d) + 6) * kF32Unit;
        ASSERT_NEAR(norms[r], std::sqrt(sum), relative * std::sqrt(sum));
        const double inverse = 1 / std::sqrt(sum / static_cast<double>(d) + 1e-5);
        for (int64_t i = 0; i < d; ++i) {
          const double want = x[r * d + i] * inverse * weight[i];
          ASSERT_NEAR(out[r * d + i], want, (relative + Unit(dtype)) * std::abs(want));
        }
      }
    }
  }
}

TEST_P(BackendContractTest, SwiGlu) {
  Values values(5);
  for (int64_t ffn : {1, 16, 70, 1536}) {
    const int64_t rows = 9;
    const auto in = values.Many(rows * 2 * ffn, 30.0);
    Tensor ti = Upload(act_, {rows, 2 * ffn}, in), to = Empty(act_, {rows, ffn});
    ASSERT_TRUE(backend_->SwiGlu(*stream_, {ti.view(), to.view()}).ok());
    const auto out = Download(to.view());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < ffn; ++i) {
        const double gate = in[r * 2 * ffn + i], up = in[r * 2 * ffn + ffn + i];
        const double want = gate / (1 + std::exp(-gate)) * up;
        // The exponent's rounding grows with |gate|; exp within 8 units; four more operations; the store.
        const double relative = (2 * std::abs(gate) + 12) * kF32Unit + Unit(act_);
        ASSERT_NEAR(out[r * ffn + i], want, relative * std::abs(want)) << gate;
      }
    }
  }
}

TEST_P(BackendContractTest, CastRoundsToNearestEven) {
  std::vector<float> x = {0.0f,
                          -0.0f,
                          1.0f,
                          -1.0f,
                          1.00390625f,
                          1.01171875f,
                          3.4e38f,
                          -3.4e38f,
                          1e-40f,
                          std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(),
                          1.003906369f};
  base::Rng rng(6);
  while (x.size() < 5 * 40) x.push_back(static_cast<float>(rng.NextDouble() * 1e3 - 500));
  Tensor tx = Upload(DType::kF32, {5, 40}, x), half = Empty(DType::kBF16, {5, 40}),
         back = Empty(DType::kF32, {5, 40});
  ASSERT_TRUE(backend_->Cast(*stream_, {tx.view(), half.view()}).ok());
  ASSERT_TRUE(backend_->Cast(*stream_, {half.view(), back.view()}).ok());
  const std::string bytes = Bytes(half.view());
  const auto widened = Download(back.view());
  for (size_t i = 0; i < x.size(); ++i) {
    uint16_t got = 0;
    std::memcpy(&got, &bytes[2 * i], 2);
    ASSERT_EQ(got, base::F32ToBF16(x[i])) << x[i];
    ASSERT_TRUE(std::isnan(x[i]) || widened[i] == base::BF16ToF32(got)) << x[i];
  }
}

TEST_P(BackendContractTest, EmbeddingAndGatherMoveRows) {
  Values values(7);
  const int64_t vocab = 50, d = 70;
  const std::vector<int32_t> ids = {0, 49, 7, 7, 23};
  const auto table = values.Many(vocab * d);
  Tensor ti = UploadIds(ids);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Tensor tt = Upload(dtype, {vocab, d}, table), out = Empty(DType::kF32, {5, d}),
           gathered = Empty(dtype, {5, d});
    ASSERT_TRUE(backend_->Embedding(*stream_, {tt.view(), ti.view(), out.view()}).ok());
    ASSERT_TRUE(backend_->GatherRows(*stream_, {tt.view(), ti.view(), gathered.view()}).ok());
    const auto a = Download(out.view()), b = Download(gathered.view());
    for (size_t r = 0; r < ids.size(); ++r) {
      for (int64_t i = 0; i < d; ++i) {
        ASSERT_EQ(a[r * d + i], table[ids[r] * d + i]);
        ASSERT_EQ(b[r * d + i], table[ids[r] * d + i]);
      }
    }
  }
}

// A wrong shape or dtype for every op is refused, not run.
TEST_P(BackendContractTest, BadShapes) {
  Tensor f = Empty(DType::kF32, {4, 8}), narrow = Empty(DType::kF32, {4, 7}),
         vector = Empty(DType::kF32, {8});
  Tensor four = Empty(DType::kF32, {4}), ids = UploadIds({0, 1, 2});
  Tensor act = Empty(act_, {4, 8}), act_narrow = Empty(act_, {4, 7});
  auto weight = Pack(8, 8, std::vector<float>(64, 1.0f));
  EXPECT_FALSE(backend_->Embedding(*stream_, {f.view(), ids.view(), f.view()}).ok());
  EXPECT_FALSE(backend_->RmsNorm(*stream_, {f.view(), vector.view(), 1e-5f, narrow.view()}).ok());
  EXPECT_FALSE(backend_->RmsNorm(*stream_, {narrow.view(), vector.view(), 1e-5f, narrow.view()}).ok());
  EXPECT_FALSE(backend_->SwiGlu(*stream_, {act.view(), act.view()}).ok());
  EXPECT_FALSE(backend_->Cast(*stream_, {f.view(), narrow.view()}).ok());
  EXPECT_FALSE(backend_->GatherRows(*stream_, {f.view(), ids.view(), f.view()}).ok());
  EXPECT_FALSE(backend_->RowNorm(*stream_, {f.view(), vector.view()}).ok());
  EXPECT_FALSE(backend_->Gram(*stream_, {f.view(), f.view(), f.view()}).ok());
  LinearArgs linear{act_narrow.view(), weight.get(), f.view(), false, Phase::kPrompt};
  EXPECT_FALSE(backend_->Linear(*stream_, linear).ok());
  linear = {act.view(), nullptr, f.view(), false, Phase::kPrompt};
  EXPECT_FALSE(backend_->Linear(*stream_, linear).ok());
  EXPECT_FALSE(backend_->CopyFromHost(*stream_, "abc", four.view()).ok());
  LinearSource source;
  source.out_features = 2;
  source.in_features = 2;
  EXPECT_FALSE(backend_->PackLinear(source).ok());  // nothing to read from
}

TEST_P(BackendContractTest, PackedFormsAreTheOnesAskedFor) {
  LinearSource source;
  source.out_features = source.in_features = 8;
  source.read_rows = [](int64_t, int64_t count, float* to) { std::fill(to, to + count * 8, 1.0f); };
  source.for_decode = false;
  auto packed = backend_->PackLinear(source);
  ASSERT_TRUE(packed.ok());
  EXPECT_TRUE((*packed)->has(Phase::kPrompt));
  EXPECT_FALSE((*packed)->has(Phase::kDecode));
  Tensor x = Empty(act_, {4, 8}), y = Empty(DType::kF32, {4, 8});
  EXPECT_FALSE(backend_->Linear(*stream_, {x.view(), packed->get(), y.view(), false, Phase::kDecode}).ok());
}

TEST_P(BackendContractTest, MemoryThatIsNotThereIsRefusedWithTheArithmetic) {
  const int64_t huge = int64_t{1} << 46;
  const auto tensor = backend_->Allocate(DType::kF32, {huge});
  EXPECT_EQ(tensor.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(tensor.status().message()), HasSubstr(std::to_string(4 * huge)));
  KvCacheSpec spec{4, int64_t{1} << 33, 2, 64};
  EXPECT_EQ(backend_->NewKvCache(spec).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace ridgefill::kernels
