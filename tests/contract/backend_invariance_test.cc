// Batch invariance: a row's bits do not depend on batch, chunk, tile, neighbours, threads or what lies in
// unwritten cache slots. Every comparison here is of bytes.
#include <algorithm>
#include <numeric>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "tests/contract/attention_harness.h"

namespace ridgefill::kernels {
namespace {

class InvarianceTest : public AttentionBackendTest {
 protected:
  void SetUp() override {
    AttentionBackendTest::SetUp();
    if (backend_ != nullptr && !backend_->capabilities().batch_invariant) GTEST_SKIP() << "not promised here";
  }

  // `op` maps rows [begin, begin + count) to bytes; all ways to cut `rows` must give the bytes of one piece.
  void ExpectSameInAnyPieces(int64_t rows, const std::function<std::string(int64_t, int64_t)>& op) {
    const std::string whole = op(0, rows);
    for (int64_t piece : {1, 2, 5, 6, 12, 13, 16, 17, 32, 33, 48, 64, 100}) {
      std::string joined;
      for (int64_t r = 0; r < rows; r += piece) joined += op(r, std::min(piece, rows - r));
      ASSERT_EQ(joined, whole) << "pieces of " << piece;
    }
    std::string joined = op(0, 3) + op(3, rows - 3);  // every row at another place in its tile
    ASSERT_EQ(joined, whole);
  }
};
INSTANTIATE_TEST_SUITE_P(All, InvarianceTest, testing::ValuesIn(AllBackends()), ParamName);

TEST_P(InvarianceTest, Linear) {
  const int64_t rows = 150;
  for (const auto& shape : {std::pair<int64_t, int64_t>{576, 70}, {2600, 20}, {6, 130}}) {
    const int64_t in = shape.first, out = shape.second;
    Values values(21);
    auto weight = Pack(out, in, values.Many(in * out), values.Many(out));
    Tensor x = Upload(act_, {rows, in}, values.Many(rows * in, 3.0));
    const auto old = values.Many(rows * out, 3.0);
    for (Phase phase : {Phase::kPrompt, Phase::kDecode}) {
      for (DType dtype : {act_, DType::kF32}) {
        ExpectSameInAnyPieces(rows, [&](int64_t begin, int64_t count) {
          Tensor y =
              Upload(dtype, {count, out}, {old.begin() + begin * out, old.begin() + (begin + count) * out});
          LinearArgs args{x.view().Rows(begin, count), weight.get(), y.view(), dtype == DType::kF32, phase};
          EXPECT_TRUE(backend_->Linear(*stream_, args).ok());
          return Bytes(y.view());
        });
      }
    }
  }
}

TEST_P(InvarianceTest, RowOps) {
  const int64_t rows = 150, d = 70;
  Values values(22);
  Tensor x = Upload(DType::kF32, {rows, d}, values.Many(rows * d)),
         weight = Upload(DType::kF32, {d}, values.Many(d));
  Tensor gate_up = Upload(act_, {rows, 2 * d}, values.Many(rows * 2 * d, 8.0));
  ExpectSameInAnyPieces(rows, [&](int64_t begin, int64_t count) {
    Tensor norm = Empty(DType::kF32, {count}), normed = Empty(act_, {count, d}),
           ffn = Empty(act_, {count, d});
    EXPECT_TRUE(backend_->RowNorm(*stream_, {x.view().Rows(begin, count), norm.view()}).ok());
    EXPECT_TRUE(
        backend_->RmsNorm(*stream_, {x.view().Rows(begin, count), weight.view(), 1e-5f, normed.view()}).ok());
    EXPECT_TRUE(backend_->SwiGlu(*stream_, {gate_up.view().Rows(begin, count), ffn.view()}).ok());
    // Row by row, so that pieces join into the whole.
    std::string joined;
    for (int64_t r = 0; r < count; ++r) {
      joined +=
          Bytes(norm.view().Rows(r, 1)) + Bytes(normed.view().Rows(r, 1)) + Bytes(ffn.view().Rows(r, 1));
    }
    return joined;
  });
}

// So that a machine without the instructions tests what one with them computes.
TEST_P(InvarianceTest, EmulationHasTheBitsOfTheInstructions) {
  constexpr absl::string_view kSuffix = "_emulated";
  if (!absl::EndsWith(GetParam().name, kSuffix)) GTEST_SKIP() << "not emulated";
  auto real = BackendParam{GetParam().name.substr(0, GetParam().name.size() - kSuffix.size())}.Make();
  if (!real.ok()) GTEST_SKIP() << real.status().message();
  const auto run = [&] {
    Values values(29);
    const int64_t rows = 77, in = 1094, out = 200;  // each ends within a tile
    auto weight = Pack(out, in, values.Many(in * out));
    Tensor x = Upload(act_, {rows, in}, values.Many(rows * in, 3.0)), y = Empty(DType::kF32, {rows, out});
    EXPECT_TRUE(backend_->Linear(*stream_, {x.view(), weight.get(), y.view(), false, Phase::kPrompt}).ok());
    NewCache({2, 3, 48});
    const Sequence seq = NewSequence(201, values);
    std::vector<int32_t> positions(90);
    std::iota(positions.begin(), positions.end(), 111);
    return Bytes(y.view()) + Attend({{&seq, positions}}, values.Many(90 * query_width(), 3.0));
  };
  const std::string emulated = run();
  cache_.reset();
  stream_.reset();
  backend_ = *std::move(real);
  stream_ = backend_->NewStream();
  EXPECT_EQ(run(), emulated);
}

TEST_P(InvarianceTest, AttentionInChunks) {
  for (const AttentionShape& shape : std::vector<AttentionShape>{{3, 3, 64}, {1, 1, 128}, {2, 7, 16}}) {
    Values values(23);
    NewCache(shape);
    const Sequence seq = NewSequence(230, values);
    const auto q = values.Many(seq.tokens * query_width(), 3.0);
    for (Phase phase : {Phase::kPrompt, Phase::kDecode}) {
      ExpectSameInAnyPieces(seq.tokens, [&](int64_t begin, int64_t count) {
        std::vector<int32_t> rows(count);
        for (int64_t r = 0; r < count; ++r) rows[r] = static_cast<int32_t>(begin + r);
        return Attend({{&seq, rows}},
                      {q.begin() + begin * query_width(), q.begin() + (begin + count) * query_width()},
                      phase);
      });
    }
  }
}

// The late pass: scattered rows compacted into one batch, beside other requests.
TEST_P(InvarianceTest, AttentionOfCompactedRowsAmongNeighbours) {
  Values values(24);
  NewCache({2, 3, 64});
  const Sequence seq = NewSequence(400, values), other = NewSequence(300, values);
  const auto q = values.Many(400 * query_width(), 3.0), noise = values.Many(400 * query_width(), 3.0);
  std::vector<int32_t> exact;
  for (int32_t p = 0; p < 400; p += p < 300 ? 37 : 1) exact.push_back(p);
  std::vector<float> packed;
  for (int32_t p : exact)
    packed.insert(packed.end(), q.begin() + p * query_width(), q.begin() + (p + 1) * query_width());
  const std::string alone = Attend({{&seq, exact}}, packed);
  for (size_t i = 0; i < exact.size(); ++i) {
    const std::vector<float> row(packed.begin() + i * query_width(),
                                 packed.begin() + (i + 1) * query_width());
    ASSERT_EQ(Attend({{&seq, {exact[i]}}}, row), alone.substr(i * row_bytes(), row_bytes())) << exact[i];
  }
  std::vector<float> mixed(noise.begin(), noise.begin() + 3 * query_width());
  mixed.insert(mixed.end(), packed.begin(), packed.end());
  mixed.insert(mixed.end(), noise.begin(), noise.begin() + query_width());
  const std::string among = Attend({{&other, {5, 6, 299}}, {&seq, exact}, {&other, {64}}}, mixed);
  ASSERT_EQ(among.substr(3 * row_bytes(), alone.size()), alone);
}

// What lies behind a row's position, in its own block too, must not reach it: not even infinities.
TEST_P(InvarianceTest, AttentionDoesNotFeelTheFuture) {
  Values values(25);
  NewCache({2, 2, 64});
  const Sequence seq = NewSequence(200, values);
  for (int32_t position : {0, 1, 62, 63, 64, 130, 131}) {
    const auto q = values.Many(query_width(), 3.0);
    const std::string before = Attend({{&seq, {position}}}, q);
    std::string future((200 - position - 1) * cache_->spec().token_bytes(), '\0');
    std::string saved(future.size(), '\0');
    const KvSpan span{1, seq.blocks, position + 1, 200 - position - 1};
    ASSERT_TRUE(backend_->ReadKv(*stream_, *cache_, span, absl::MakeSpan(&saved[0], saved.size())).ok());
    for (size_t i = 1; i < future.size(); i += 2) future[i - 1] = '\x80', future[i] = '\x7f';  // +infinity
    ASSERT_TRUE(backend_->WriteKv(*stream_, *cache_, span, future).ok());
    ASSERT_EQ(Attend({{&seq, {position}}}, q), before) << position;
    ASSERT_TRUE(backend_->WriteKv(*stream_, *cache_, span, saved).ok());
  }
}

// Two threads with a stream each get what one gets alone.
TEST_P(InvarianceTest, StreamsFromSeveralThreads) {
  Values values(26);
  const int64_t rows = 40, in = 128, out = 200;
  auto weight = Pack(out, in, values.Many(in * out));
  Tensor x = Upload(act_, {rows, in}, values.Many(rows * in));
  Tensor want = Empty(DType::kF32, {rows, out});
  ASSERT_TRUE(backend_->Linear(*stream_, {x.view(), weight.get(), want.view(), false, Phase::kPrompt}).ok());
  const std::string expected = Bytes(want.view());
  std::vector<std::thread> threads;
  threads.reserve(2);
  std::vector<std::string> got(2);
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      auto stream = backend_->NewStream();
      auto y = backend_->Allocate(DType::kF32, {rows, out});
      for (int i = 0; i < 50; ++i) {
        const LinearArgs args{x.view(), weight.get(), y->view(), false, Phase::kPrompt};
        if (!backend_->Linear(*stream, args).ok()) return;
      }
      got[t].resize(y->view().bytes());
      backend_->CopyToHost(*stream, y->view(), absl::MakeSpan(&got[t][0], got[t].size())).IgnoreError();
      backend_->Synchronize(*stream).IgnoreError();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got[0], expected);
  EXPECT_EQ(got[1], expected);
}

}  // namespace
}  // namespace ridgefill::kernels
