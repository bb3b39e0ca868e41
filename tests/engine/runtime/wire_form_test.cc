// Both wire forms leave one and the same cache, byte for byte; and the fill goes in pieces of bounded size.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/eval/subject.h"
#include "engine/runtime/decode_request.h"
#include "tests/engine/runtime/trio.h"

namespace ridgefill::runtime {
namespace {

constexpr int kSplit = 2;

std::vector<const ridge::DeviceMaps*> MapsOrNone(const ridge::DeviceMaps* maps) {
  return maps == nullptr ? std::vector<const ridge::DeviceMaps*>() : std::vector{maps};
}

// A prompt's cache after its late pass: what a decode engine does, step by step.
class CacheAfterPrompt {
 public:
  CacheAfterPrompt(PrefillEngine& prefill, const ridge::DeviceMaps* maps, int64_t piece_rows)
      : source_(prefill), piece_rows_(piece_rows) {
    DecodePass::Options options;
    options.cache_blocks = 8;
    options.piece_rows = piece_rows;
    options.decode_rows = 1;
    pass_ = DecodePass::Create(Tiny().model(), MapsOrNone(maps), options).value();
  }

  // With `plan` the fill's own says nothing.
  void Run(const std::vector<int32_t>& tokens, const ridge::FillDecision& decision,
           const ridge::FillPlan* plan = nullptr) {
    plan_ = plan;
    request_.call = GreedyCall(tokens, decision, 1);
    request_.blocks.blocks = {6, 1, 4, 3, 7, 0};
    request_.work = SplitWork(decision, Tiny().layers(), request_.prompt_tokens());
    Receive();
    request_.Received(Tiny().layers());
    while (request_.state == RequestState::kFilling) FillPiece();
    while (request_.late_left() > 0) {
      const int64_t rows = std::min(request_.late_left(), piece_rows_);
      ASSERT_TRUE(pass_->RunPiece(request_.NextPiece(rows)).ok());
      request_.late_done += rows;
    }
  }
  // K, then V of the prompt's rows.
  std::vector<char> Layer(int layer) const {
    kernels::Backend& backend = Tiny().model().backend();
    const kernels::KvSpan span{layer, request_.blocks.blocks, 0, request_.prompt_tokens()};
    std::vector<char> bytes(span.bytes(pass_->cache().spec()));
    const auto stream = backend.NewStream();
    EXPECT_TRUE(backend.ReadKv(*stream, pass_->cache(), span, absl::MakeSpan(bytes)).ok());
    EXPECT_TRUE(backend.Synchronize(*stream).ok());
    return bytes;
  }
  const DecodeRequest& request() const { return request_; }
  int fill_pieces() const { return fill_pieces_; }

 private:
  void Receive() {
    const model::ModelConfig& config = Tiny().model().config();
    PrefillCall call;
    call.hello = Tiny().MakeHello();
    call.tokens = request_.call.tokens;
    call.decision = request_.call.decision;
    const TransferChecker::Expectation expected{call.decision, request_.prompt_tokens(), config.layers,
                                                config.hidden, pass_->cache().spec().token_bytes()};
    request_.intake = std::make_unique<TransferIntake>(source_.Open(std::move(call), [] {}), expected);
    while (!request_.intake->sealed()) {
      const auto frames = request_.intake->Poll(*pass_, request_.blocks, 3);
      ASSERT_TRUE(frames.ok()) << frames.status();
      if (*frames == 0) absl::SleepFor(absl::Microseconds(100));
    }
  }
  void FillPiece() {
    BulkFill& fill = *request_.fill;
    const int64_t left = fill.left(), filled = fill.filled_rows(), probed = fill.probed_rows();
    const int64_t rows = std::min(left, piece_rows_);
    ASSERT_TRUE(fill.Step(*pass_, rows).ok());
    ++fill_pieces_;
    const int64_t more_filled = fill.filled_rows() - filled, more_probed = fill.probed_rows() - probed;
    EXPECT_LE(more_filled, rows * kFilledRowsPerRow);
    EXPECT_LE(more_probed, rows);
    EXPECT_EQ((more_filled > 0) + (more_probed > 0), 1) << "each piece moves one thing";
    if (fill.left() > 0) return;
    request_.BeginLatePass(plan_ != nullptr ? *plan_ : fill.plan(), Tiny().layers());
  }

  DirectSource source_;
  const int64_t piece_rows_;
  std::unique_ptr<DecodePass> pass_;
  DecodeRequest request_;
  const ridge::FillPlan* plan_ = nullptr;
  int fill_pieces_ = 0;
};

class WireFormTest : public testing::TestWithParam<MapKind> {
 protected:
  WireFormTest() {
    std::vector<float> norms = PlainRowNorms(Tiny(), RandomTokens(1, 200, Tiny().vocab()), kSplit);
    std::nth_element(norms.begin(), norms.begin() + 190, norms.end());
    maps_ = Tiny().RandomMaps(kSplit, norms[190], GetParam());
  }
  std::unique_ptr<PrefillEngine> Prefill(const ridge::DeviceMaps* maps) const {
    PrefillEngineOptions options;
    options.chunk_tokens = 64;
    options.context_tokens = 384;
    options.frame_bytes = 3000;
    return PrefillEngine::Create(Tiny().model(), MapsOrNone(maps), Tiny().MakeHello(), *clock_, options)
        .value();
  }

  std::unique_ptr<base::Clock> clock_ = base::MakeSystemClock();
  std::unique_ptr<ridge::DeviceMaps> maps_;
};
std::string KindName(const testing::TestParamInfo<MapKind>& info) {
  if (info.param == MapKind::kPlain) return "plain";
  return info.param == MapKind::kMixtureAndPreviousRow ? "mixture" : "unfolded";
}
INSTANTIATE_TEST_SUITE_P(Maps, WireFormTest,
                         testing::Values(MapKind::kPlain, MapKind::kMixtureAndPreviousRow,
                                         MapKind::kUnfolded),
                         KindName);

TEST_P(WireFormTest, LeaveTheSameCacheEverywhere) {
  const auto with_maps = Prefill(maps_.get()), without_maps = Prefill(nullptr);
  int64_t selected = 0, outliers = 0;
  for (const ridge::FillDecision& decision :
       {Speed(kSplit, 32), Quality(kSplit, 32, 0.4f), Quality(kSplit, 32, 0.4f, ridge::Selector::kRarity)}) {
    for (int64_t length : {33, 34, 64, 65, 96, 97, 128, 160, 161, 225, 320}) {
      SCOPED_TRACE(absl::StrCat(ridge::Name(decision.mode), ", ", ridge::Name(decision.selector), ", prompt ",
                                length));
      const auto tokens = RandomTokens(length, length, Tiny().vocab());
      CacheAfterPrompt kv(*with_maps, nullptr, 48),
          hidden(*without_maps, maps_.get(), length % 2 == 0 ? 5 : 64);
      kv.Run(tokens, decision);
      hidden.Run(tokens, Hidden(decision));
      ASSERT_EQ(hidden.request().plan.outliers, kv.request().plan.outliers);
      ASSERT_EQ(hidden.request().plan.selected, kv.request().plan.selected);
      for (int layer = 0; layer < Tiny().layers(); ++layer) {
        ASSERT_TRUE(hidden.Layer(layer) == kv.Layer(layer)) << "layer " << layer;
      }
      selected += static_cast<int64_t>(kv.request().plan.selected.size());
      outliers += static_cast<int64_t>(kv.request().plan.outliers.size());
      EXPECT_EQ(kv.fill_pieces(), 0);
    }
  }
  EXPECT_GT(selected, 100);
  EXPECT_GT(outliers, 2 * 33) << "the threshold must find rows besides row 0";
}

// A probe leaves nothing of its own behind: the cache is that of the same plan by any other way.
TEST_P(WireFormTest, AProbeLeavesTheCacheOfItsPlan) {
  const auto prefill = Prefill(nullptr);
  for (int tail : {32, 100}) {
    const auto tokens = RandomTokens(tail, 300, Tiny().vocab());
    CacheAfterPrompt probe(*prefill, maps_.get(), 40), speed(*prefill, maps_.get(), 33),
        planned(*prefill, maps_.get(), 33);
    probe.Run(tokens, Hidden(Quality(kSplit, tail, 0.3f, ridge::Selector::kProbe)));
    ASSERT_FALSE(probe.request().plan.selected.empty());
    speed.Run(tokens, Hidden(Speed(kSplit, tail)));
    planned.Run(tokens, Hidden(Speed(kSplit, tail)), &probe.request().plan);  // filled without a probe
    for (int layer = 0; layer < Tiny().layers(); ++layer) {
      EXPECT_TRUE(probe.Layer(layer) == planned.Layer(layer)) << "layer " << layer;
      EXPECT_EQ(probe.Layer(layer) == speed.Layer(layer), layer <= kSplit) << "layer " << layer;
    }
  }
}

// Engine and evaluation: the same rows, the same cache.
TEST_P(WireFormTest, AProbeIsTheEvaluations) {
  const auto prefill = Prefill(nullptr);
  eval::Subject::Options options;
  options.max_tokens = 320;
  options.chunk_rows = 100;
  const auto subject = eval::Subject::Create(Tiny().model(), *maps_, options).value();
  int64_t selected = 0;
  for (int64_t length : {130, 257, 320}) {
    for (int tail : {32, 80}) {
      const auto tokens = RandomTokens(length, length, Tiny().vocab());
      CacheAfterPrompt engine(*prefill, maps_.get(), 24);
      engine.Run(tokens, Hidden(Quality(kSplit, tail, 0.4f, ridge::Selector::kProbe)));
      ASSERT_TRUE(subject->Lower(tokens).ok());
      ASSERT_TRUE(
          subject->RunFilled({eval::Fill::kRidge, ridge::Selector::kProbe, 0.4f}, {length, tail}).ok());
      EXPECT_EQ(engine.request().plan.outliers, subject->plan().outliers);
      EXPECT_EQ(engine.request().plan.selected, subject->plan().selected);
      selected += static_cast<int64_t>(subject->plan().selected.size());
      for (int layer = 0; layer < Tiny().layers(); ++layer) {
        EXPECT_TRUE(engine.Layer(layer) == subject->forward().ReadKv(layer).value()) << "layer " << layer;
      }
    }
  }
  EXPECT_GT(selected, 60);
}

TEST_P(WireFormTest, ALongFillIsCut) {
  const auto prefill = Prefill(nullptr);
  CacheAfterPrompt speed(*prefill, maps_.get(), 8), probe(*prefill, maps_.get(), 8);
  const auto tokens = RandomTokens(1, 352, Tiny().vocab());
  speed.Run(tokens, Hidden(Speed(kSplit, 32)));
  EXPECT_EQ(speed.fill_pieces(), 10) << "320 rows, 32 a piece";
  probe.Run(tokens, Hidden(Quality(kSplit, 32, 0.1f, ridge::Selector::kProbe)));
  EXPECT_GE(probe.fill_pieces(), 10 + 4 + 1) << "32 rows of the probe, and the outliers before them";
}

}  // namespace
}  // namespace ridgefill::runtime
