// The contract of attention mass, one body for all backends: values against an f64 oracle, the same bits in
// any chunks, refusal of what it cannot do.
#include "tests/contract/attention_harness.h"

namespace ridgefill::kernels {
namespace {

struct MassCase {
  int64_t min_distance;
  MassReduction reduction;
};

class AttentionMassTest : public AttentionBackendTest {
 protected:
  // One call over rows `rows` of a sequence, added to `mass`.
  absl::Status Add(const Sequence& seq, const std::vector<int32_t>& rows, const std::vector<float>& q,
                   const MassCase& c, const Tensor& mass) {
    const std::vector<SequenceRows> sequences = {{0, static_cast<int64_t>(rows.size()), seq.blocks}};
    auto batch = backend_->NewBatch({rows, sequences, Phase::kPrompt}, nullptr);
    if (!batch.ok()) return batch.status();
    Tensor tq = Upload(act_, {static_cast<int64_t>(rows.size()), query_width()}, q);
    return backend_->AttentionMass(*stream_, {batch->get(), tq.view(), cache_.get(), 1, scale(),
                                              c.min_distance, c.reduction, mass.view()});
  }
  Tensor Zeros(int64_t columns) {
    return Upload(DType::kF32, {shape_.kv_heads, columns}, std::vector<float>(shape_.kv_heads * columns));
  }

  struct Expected {
    double value = 0, tolerance = 0;
  };
  // f64 mass [kv_heads, columns] of some rows.
  std::vector<Expected> Oracle(const Sequence& seq, const std::vector<int32_t>& rows,
                               const std::vector<float>& q, const MassCase& c, int64_t columns) {
    std::vector<Expected> mass(shape_.kv_heads * columns);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int h = 0; h < shape_.kv_heads * shape_.group; ++h) {
        AddHead(seq, rows[r], h / shape_.group, &q[r * query_width() + h * shape_.head_dim], c,
                &mass[h / shape_.group * columns]);
      }
    }
    // A chain of additions rounds each partial sum once.
    const double adds = static_cast<double>(rows.size()) * shape_.group;
    for (Expected& m : mass) m.tolerance += adds * kF32Unit * m.value + 1e-30;
    return mass;
  }

  void AddHead(const Sequence& seq, int32_t position, int kv_head, const float* q, const MassCase& c,
               Expected* mass) {
    const int d = shape_.head_dim;
    std::vector<double> score(position + 1);
    double spread = 0, total = 0;
    for (int32_t t = 0; t <= position; ++t) {
      double size = 0;
      for (int i = 0; i < d; ++i) {
        const double term = double{q[i]} * seq.k[t * token_width() + kv_head * d + i] * scale();
        score[t] += term;
        size += std::abs(term);
      }
      spread = std::max(spread, size);
    }
    const double top = *std::max_element(score.begin(), score.end());
    for (double s : score) total += std::exp(s - top);
    // As for attention: head_dim + 4 roundings of a score's magnitudes in numerator and denominator, 16 units
    // for the two exponentials, one rounding a token for the sum, and the last product. Below 2^-126 of the
    // row's peak a backend may say 0.
    const double unit = (2 * spread * (d + 4) + 16 + position + 2) * kF32Unit;
    for (int32_t t = 0; t <= position - c.min_distance; ++t) {
      const double p = std::exp(score[t] - top) / total;
      const double tolerance = unit * p + 0x1p-125;
      if (c.reduction == MassReduction::kSum) {
        mass[t].value += p;
        mass[t].tolerance += tolerance;
      } else {
        mass[t].value = std::max(mass[t].value, p);
        mass[t].tolerance = std::max(mass[t].tolerance, tolerance);
      }
    }
  }

  static std::vector<MassCase> Cases() {
    return {{0, MassReduction::kSum},   {1, MassReduction::kSum}, {100, MassReduction::kSum},
            {500, MassReduction::kSum}, {0, MassReduction::kMax}, {64, MassReduction::kMax}};
  }
};
INSTANTIATE_TEST_SUITE_P(All, AttentionMassTest, testing::ValuesIn(AllBackends()), ParamName);

std::vector<int32_t> Range(int32_t begin, int32_t end) {
  std::vector<int32_t> rows;
  for (int32_t r = begin; r < end; ++r) rows.push_back(r);
  return rows;
}

TEST_P(AttentionMassTest, MatchesTheOracle) {
  for (const AttentionShape& shape :
       std::vector<AttentionShape>{{3, 3, 64}, {1, 1, 128}, {1, 7, 16}, {2, 2, 24}}) {
    Values values(31);
    NewCache(shape);
    const Sequence seq = NewSequence(203, values);
    std::vector<int32_t> scattered;
    for (int32_t p = 0; p < 203; p += 1 + p % 5) scattered.push_back(p);
    for (const std::vector<int32_t>& rows : {Range(0, 203), Range(190, 203), scattered, {0}, {64}}) {
      const auto q = values.Many(static_cast<int64_t>(rows.size()) * query_width(), 2.0);
      for (const MassCase& c : Cases()) {
        const int64_t columns = rows.back() + 1 + (c.min_distance % 2);  // with and without a spare one
        Tensor mass = Zeros(columns);
        ASSERT_TRUE(Add(seq, rows, q, c, mass).ok());
        const auto got = Download(mass.view());
        const auto want = Oracle(seq, rows, q, c, columns);
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], want[i].value, want[i].tolerance)
              << "head_dim " << shape.head_dim << " rows " << rows.size() << " distance " << c.min_distance
              << " column " << i;
        }
      }
    }
  }
}

// With nothing left out, a row hands out exactly its query heads' probabilities.
TEST_P(AttentionMassTest, EveryRowHandsOutOnePerHead) {
  Values values(32);
  NewCache({2, 3, 64});
  const Sequence seq = NewSequence(150, values);
  Tensor mass = Zeros(150);
  const auto rows = Range(0, 150);
  ASSERT_TRUE(Add(seq, rows, values.Many(150 * query_width(), 2.0), {0, MassReduction::kSum}, mass).ok());
  double total = 0;
  for (float m : Download(mass.view())) total += m;
  EXPECT_NEAR(total, 150 * 6, 1e-3);
}

TEST_P(AttentionMassTest, TheSameBitsInAnyChunks) {
  for (const AttentionShape& shape : std::vector<AttentionShape>{{1, 3, 64}, {2, 7, 16}}) {
    Values values(33);
    NewCache(shape);
    const Sequence seq = NewSequence(230, values);
    const auto q = values.Many(230 * query_width(), 3.0);
    for (const MassCase& c : Cases()) {
      std::string whole;
      for (const int32_t piece : {230, 5, 64}) {
        Tensor mass = Zeros(230);
        for (int32_t r = 0; r < 230; r += piece) {
          const int32_t end = std::min(r + piece, 230);
          ASSERT_TRUE(Add(seq, Range(r, end),
                          {q.begin() + r * query_width(), q.begin() + end * query_width()}, c, mass)
                          .ok());
        }
        const std::string bytes = Bytes(mass.view());
        if (whole.empty()) whole = bytes;
        ASSERT_EQ(bytes, whole) << "pieces of " << piece << ", distance " << c.min_distance;
      }
    }
  }
}

TEST_P(AttentionMassTest, RefusesWhatItCannotDo) {
  NewCache({2, 2, 16});
  const std::vector<int32_t> blocks = {0, 1}, positions = {5, 6};
  const std::vector<SequenceRows> one = {{0, 2, blocks}}, two = {{0, 1, blocks}, {1, 1, blocks}};
  auto batch = backend_->NewBatch({positions, one, Phase::kPrompt}, nullptr);
  auto pair = backend_->NewBatch({positions, two, Phase::kPrompt}, nullptr);
  ASSERT_TRUE(batch.ok() && pair.ok());
  Tensor q = Empty(act_, {2, 64}), wide = Empty(act_, {2, 65}), mass = Empty(DType::kF32, {2, 7});
  const auto run = [&](const Batch* b, const Tensor& in, const Tensor& out, int64_t distance = 0) {
    return backend_->AttentionMass(
        *stream_, {b, in.view(), cache_.get(), 0, 1.0f, distance, MassReduction::kSum, out.view()});
  };
  EXPECT_FALSE(run(pair->get(), q, mass).ok());
  EXPECT_FALSE(run(nullptr, q, mass).ok());
  EXPECT_FALSE(run(batch->get(), wide, mass).ok());
  EXPECT_FALSE(run(batch->get(), q, Empty(DType::kF32, {2, 6})).ok());
  EXPECT_FALSE(run(batch->get(), q, Empty(DType::kF32, {1, 7})).ok());
  EXPECT_FALSE(run(batch->get(), q, Empty(DType::kI32, {2, 7})).ok());
  EXPECT_FALSE(run(batch->get(), q, mass, -1).ok());
}

}  // namespace
}  // namespace ridgefill::kernels
