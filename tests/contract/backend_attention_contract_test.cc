// The contract of RoPE, the KV cache and attention, one body for all backends.
#include "tests/contract/attention_harness.h"

namespace ridgefill::kernels {
namespace {

class AttentionContractTest : public AttentionBackendTest {
 protected:
  // f64 attention of one query head [head_dim] over tokens [0, position]; also gives the tolerance.
  std::vector<double> Oracle(const Sequence& seq, int32_t position, int kv_head, const float* q,
                             double* tolerance) {
    const int d = shape_.head_dim;
    std::vector<double> score(position + 1), out(d, 0.0);
    double spread = 0;  // the largest sum of magnitudes behind a score
    for (int32_t t = 0; t <= position; ++t) {
      double dot = 0, size = 0;
      for (int i = 0; i < d; ++i) {
        const double term = double{q[i]} * seq.k[t * token_width() + kv_head * d + i];
        dot += term;
        size += std::abs(term);
      }
      score[t] = dot * scale();
      spread = std::max(spread, size * scale());
    }
    const double top = *std::max_element(score.begin(), score.end());
    double total = 0, largest = 0;
    for (int32_t t = 0; t <= position; ++t) {
      const double weight = std::exp(score[t] - top);
      total += weight;
      for (int i = 0; i < d; ++i) {
        const double v = seq.v[t * token_width() + kv_head * d + i];
        out[i] += weight * v;
        largest = std::max(largest, std::abs(v));
      }
    }
    for (double& o : out) o /= total;
    // A score is off by head_dim + 4 roundings of its magnitudes; that moves a weight by as much, relatively,
    // in numerator and denominator alike. exp brings 8 units, the sums one rounding a token, a rescaling a
    // block, and a bf16 weight its own rounding. All of it in units of the largest |v|; then the store.
    const double weights = 2 * spread * (d + 4) * kF32Unit + 16 * kF32Unit + Unit(act_);
    *tolerance = largest * (weights + 2.0 * (position + 1) * kF32Unit + Unit(act_));
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(All, AttentionContractTest, testing::ValuesIn(AllBackends()), ParamName);

TEST_P(AttentionContractTest, MatchesTheOracle) {
  const std::vector<AttentionShape> shapes = {{3, 3, 64}, {2, 1, 128}, {1, 7, 16}, {2, 2, 24}, {1, 4, 2}};
  for (const AttentionShape& shape : shapes) {
    Values values(11);
    NewCache(shape);
    const Sequence a = NewSequence(203, values), b = NewSequence(65, values), c = NewSequence(1, values);
    std::vector<int32_t> late;  // a compacted batch: scattered positions
    for (int32_t p = 0; p < 203; p += 1 + p % 7) late.push_back(p);
    const std::vector<std::pair<const Sequence*, std::vector<int32_t>>> parts = {
        {&a, late}, {&b, {62, 63, 64}}, {&c, {0}}, {&b, {10}}};
    std::vector<float> q = values.Many(static_cast<int64_t>(late.size() + 5) * query_width(), 2.0);
    for (Phase phase : {Phase::kPrompt, Phase::kDecode}) {
      const std::string bytes = Attend(parts, q, phase);
      int64_t row = 0;
      for (const auto& [seq, rows] : parts) {
        for (int32_t position : rows) {
          for (int h = 0; h < shape.kv_heads * shape.group; ++h) {
            const int64_t at = row * query_width() + h * shape.head_dim;
            double tolerance = 0;
            const auto want = Oracle(*seq, position, h / shape.group, q.data() + at, &tolerance);
            for (int i = 0; i < shape.head_dim; ++i) {
              float got = 0;
              uint16_t half = 0;
              if (act_ == DType::kF32) std::memcpy(&got, &bytes[4 * (at + i)], 4);
              if (act_ == DType::kBF16)
                std::memcpy(&half, &bytes[2 * (at + i)], 2), got = base::BF16ToF32(half);
              ASSERT_NEAR(got, want[i], tolerance)
                  << "head_dim " << shape.head_dim << " position " << position;
            }
          }
          ++row;
        }
      }
    }
  }
}

// Scores that differ by hundreds: the softmax must neither overflow nor lose the winner.
TEST_P(AttentionContractTest, SurvivesExtremeScores) {
  Values values(12);
  NewCache({1, 1, 64});
  Sequence seq = NewSequence(130, values);
  std::vector<float> q(64);
  for (int i = 0; i < 64; ++i) q[i] = base::BF16ToF32(base::F32ToBF16(seq.k[100 * 64 + i] * 512));
  const std::string bytes = Attend({{&seq, {129}}}, q);
  Tensor out = Empty(act_, {1, 64});
  ASSERT_TRUE(backend_->CopyFromHost(*stream_, bytes, out.view()).ok());
  const auto got = Download(out.view());
  // Token 100 is the query's own direction; its score leads by far more than 2^-24 can show.
  for (int i = 0; i < 64; ++i) ASSERT_NEAR(got[i], seq.v[100 * 64 + i], 2 * Unit(act_) * 2.0);
}

TEST_P(AttentionContractTest, RopeTurnsQAndWritesK) {
  for (const AttentionShape& shape :
       std::vector<AttentionShape>{{3, 3, 64}, {1, 2, 128}, {2, 1, 16}, {1, 1, 6}}) {
    Values values(13);
    NewCache(shape);
    const int d = shape.head_dim, half = d / 2;
    RopeSpec rope;
    rope.head_dim = d;
    for (int i = 0; i < half; ++i) rope.inverse_frequencies.push_back(std::pow(10000.0, -2.0 * i / d));
    const std::vector<int32_t> positions = {0, 1, 63, 64, 150, 4000}, blocks = [] {
      std::vector<int32_t> b(63);
      for (int i = 0; i < 63; ++i) b[i] = 63 - i;
      return b;
    }();
    const int64_t rows = static_cast<int64_t>(positions.size());
    for (DType kv_dtype : {DType::kF32, act_}) {
      const auto q = values.Many(rows * query_width()), kv = values.Many(rows * 2 * token_width());
      Tensor tq = Upload(act_, {rows, query_width()}, q),
             tkv = Upload(kv_dtype, {rows, 2 * token_width()}, kv);
      const std::vector<SequenceRows> sequences = {{0, rows, blocks}};
      auto batch = backend_->NewBatch({positions, sequences, Phase::kPrompt}, &rope);
      ASSERT_TRUE(batch.ok()) << batch.status();
      RopeWriteArgs args{batch->get(), &rope, tq.view(), tkv.view(), cache_.get(), 1};
      ASSERT_TRUE(backend_->RopeWrite(*stream_, args).ok());
      const auto turned = Download(tq.view());
      // Two products and a sum, cosine and sine rounded once: 4 units of |a| + |b|; then the store.
      const auto expect_turned = [&](const float* in, const float* out, int32_t position, double store) {
        for (int i = 0; i < half; ++i) {
          const double angle = position * rope.inverse_frequencies[i], a = in[i], b = in[i + half];
          const double x = a * std::cos(angle) - b * std::sin(angle),
                       y = b * std::cos(angle) + a * std::sin(angle);
          const double compute = 4 * kF32Unit * (std::abs(a) + std::abs(b));
          ASSERT_NEAR(out[i], x, compute + store * (std::abs(x) + compute));
          ASSERT_NEAR(out[i + half], y, compute + store * (std::abs(y) + compute));
        }
      };
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t at = r * query_width(); at < (r + 1) * query_width(); at += d) {
          expect_turned(&q[at], &turned[at], positions[r], Unit(act_));
        }
        std::vector<uint16_t> token(2 * token_width());
        KvSpan span{1, blocks, positions[r], 1};
        ASSERT_TRUE(
            backend_
                ->ReadKv(*stream_, *cache_, span, {reinterpret_cast<char*>(token.data()), token.size() * 2})
                .ok());
        for (int h = 0; h < shape.kv_heads; ++h) {
          std::vector<float> k(d);
          for (int i = 0; i < d; ++i) k[i] = base::BF16ToF32(token[h * d + i]);
          const float* in = &kv[r * 2 * token_width() + h * d];
          expect_turned(in, k.data(), positions[r], kBf16Unit);
          for (int i = 0; i < d; ++i) {
            ASSERT_EQ(token[token_width() + h * d + i], base::F32ToBF16(in[token_width() + i]));
          }
        }
      }
    }
  }
}

TEST_P(AttentionContractTest, KvBytesComeBackAsTheyWentIn) {
  NewCache({3, 1, 22});
  base::Rng rng(14);
  const std::vector<int32_t> blocks = {9, 3, 60, 1};
  for (auto [begin, count] : {std::pair<int64_t, int64_t>{0, 256}, {63, 2}, {5, 0}, {127, 70}, {255, 1}}) {
    std::string in(count * cache_->spec().token_bytes(), '\0'), out(in.size(), 'x');
    for (size_t i = 0; i < in.size(); ++i)
      in[i] = static_cast<char>(rng.NextU64() & (i % 2 == 0 ? 0xff : 0xbf));  // finite
    const KvSpan span{0, blocks, begin, count};
    ASSERT_TRUE(backend_->WriteKv(*stream_, *cache_, span, in).ok());
    ASSERT_TRUE(backend_->ReadKv(*stream_, *cache_, span, absl::MakeSpan(&out[0], out.size())).ok());
    ASSERT_TRUE(backend_->Synchronize(*stream_).ok());
    ASSERT_EQ(in, out);
  }
}

TEST_P(AttentionContractTest, BadSpansBatchesAndShapes) {
  NewCache({1, 2, 16});
  const std::vector<int32_t> blocks = {0, 1}, outside = {0, kBlocks}, positions = {5, 6}, backwards = {6, 5};
  std::string bytes(cache_->spec().token_bytes(), '\0');
  EXPECT_FALSE(backend_->WriteKv(*stream_, *cache_, {0, blocks, 128, 1}, bytes).ok());
  EXPECT_FALSE(backend_->WriteKv(*stream_, *cache_, {2, blocks, 0, 1}, bytes).ok());
  EXPECT_FALSE(backend_->WriteKv(*stream_, *cache_, {0, outside, 0, 1}, bytes).ok());
  EXPECT_FALSE(backend_->WriteKv(*stream_, *cache_, {0, blocks, 0, 2}, bytes).ok());
  EXPECT_FALSE(backend_->NewKvCache({1, 1, 1, 3}).ok());  // odd head_dim
  const auto new_batch = [&](const std::vector<int32_t>& p, const std::vector<SequenceRows>& s) {
    return backend_->NewBatch({p, s, Phase::kPrompt}, nullptr);
  };
  EXPECT_FALSE(new_batch(backwards, {{0, 2, blocks}}).ok());
  EXPECT_FALSE(new_batch(positions, {{0, 1, blocks}}).ok());
  EXPECT_FALSE(new_batch(positions, {{1, 1, blocks}, {0, 1, blocks}}).ok());
  EXPECT_FALSE(new_batch({5, 128}, {{0, 2, blocks}}).ok());
  auto batch = new_batch(positions, {{0, 2, blocks}}), far = new_batch(positions, {{0, 2, outside}});
  ASSERT_TRUE(batch.ok() && far.ok());
  Tensor q = Empty(act_, {2, 32}), wide = Empty(act_, {2, 33}), long_q = Empty(act_, {3, 32});
  const auto attend = [&](const Batch* b, const Tensor& in, const Tensor& out, int layer) {
    return backend_->Attention(*stream_, {b, in.view(), cache_.get(), layer, 1.0f, out.view()});
  };
  EXPECT_FALSE(attend(batch->get(), wide, wide, 0).ok());
  EXPECT_FALSE(attend(batch->get(), long_q, long_q, 0).ok());
  EXPECT_FALSE(attend(batch->get(), q, long_q, 0).ok());
  EXPECT_FALSE(attend(batch->get(), q, q, 2).ok());
  EXPECT_FALSE(attend(far->get(), q, q, 0).ok());
  EXPECT_FALSE(attend(nullptr, q, q, 0).ok());
  RopeSpec rope{16, std::vector<double>(8, 0.5)};
  Tensor kv = Empty(DType::kF32, {2, 31});
  EXPECT_FALSE(backend_->RopeWrite(*stream_, {batch->get(), &rope, {}, kv.view(), cache_.get(), 0}).ok());
}

}  // namespace
}  // namespace ridgefill::kernels
