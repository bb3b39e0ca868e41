// The prefill engine against a sink that the test holds: frames, order, room, limits, ends.
#include "engine/runtime/prefill_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "engine/runtime/transfer_checker.h"
#include "tests/engine/runtime/trio.h"

namespace ridgefill::runtime {
namespace {

// What one sink saw; outlives the sink.
struct Seen {
  std::atomic<bool> room = true;
  std::atomic<bool> cancelled = false;
  absl::Mutex mutex;
  std::vector<KvFrame> frames ABSL_GUARDED_BY(mutex);
  std::optional<absl::Status> end ABSL_GUARDED_BY(mutex);
  std::function<void()> wake ABSL_GUARDED_BY(mutex);

  absl::Status Wait() {
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return end.has_value(); };
    absl::MutexLock lock(&mutex);
    RF_CHECK(mutex.AwaitWithTimeout(absl::Condition(&ended), absl::Seconds(60)));
    return *end;
  }
  bool ended() {
    absl::MutexLock lock(&mutex);
    return end.has_value();
  }
  size_t count() {
    absl::MutexLock lock(&mutex);
    return frames.size();
  }
  std::vector<KvFrame> All() {
    absl::MutexLock lock(&mutex);
    return frames;
  }
  void GiveRoom() {
    room = true;
    std::function<void()> call;
    {
      absl::MutexLock lock(&mutex);
      call = wake;
    }
    if (call) call();
  }
};

class SeenSink : public KvSink {
 public:
  explicit SeenSink(std::shared_ptr<Seen> seen) : seen_(std::move(seen)) {}
  bool HasRoom() const override { return seen_->room; }
  bool Cancelled() const override { return seen_->cancelled; }
  void Send(KvFrame frame) override {
    absl::MutexLock lock(&seen_->mutex);
    RF_CHECK(!seen_->end.has_value());
    seen_->frames.push_back(std::move(frame));
  }
  void Finish(absl::Status status) override {
    absl::MutexLock lock(&seen_->mutex);
    RF_CHECK(!seen_->end.has_value());  // exactly once
    seen_->end = std::move(status);
  }
  void SetWakeup(std::function<void()> wake) override {
    absl::MutexLock lock(&seen_->mutex);
    seen_->wake = std::move(wake);
  }

 private:
  const std::shared_ptr<Seen> seen_;
};

class PrefillEngineTest : public testing::Test {
 protected:
  void Start(PrefillEngineOptions options, const ridge::DeviceMaps* maps = nullptr,
             const TinyModel& tiny = Tiny()) {
    std::vector<const ridge::DeviceMaps*> sets;
    if (maps != nullptr) sets.push_back(maps);
    auto engine = PrefillEngine::Create(tiny.model(), sets, tiny.MakeHello({{2, "maps"}}), *clock_, options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  static PrefillCall Call(int64_t tokens, const ridge::FillDecision& decision) {
    PrefillCall call;
    call.hello = Tiny().MakeHello({{2, "maps"}});
    call.tokens = RandomTokens(tokens, tokens, Tiny().vocab());
    call.decision = decision;
    return call;
  }
  absl::Status Submit(const PrefillCall& call, std::shared_ptr<Seen> seen) {
    std::unique_ptr<KvSink> sink = std::make_unique<SeenSink>(std::move(seen));
    absl::Status status = engine_->Submit(call, sink);
    EXPECT_EQ(status.ok(), sink == nullptr) << "the sink moves exactly when the request is accepted";
    return status;
  }
  std::shared_ptr<Seen> Run(const PrefillCall& call) {
    auto seen = std::make_shared<Seen>();
    EXPECT_EQ(Submit(call, seen), absl::OkStatus());
    return seen;
  }
  // A decode worker's view of the transfer.
  static absl::Status Check(const PrefillCall& call, const std::vector<KvFrame>& frames) {
    const model::ModelConfig& config = Tiny().model().config();
    TransferChecker::Expectation expected;
    expected.decision = call.decision;
    expected.tokens = static_cast<int64_t>(call.tokens.size());
    expected.layers = config.layers;
    expected.hidden = config.hidden;
    expected.kv_token_bytes = kTokenBytes;
    TransferChecker checker(expected);
    for (const KvFrame& frame : frames) RF_RETURN_IF_ERROR(checker.Accept(frame));
    return checker.AcceptEnd(absl::OkStatus());
  }

  static constexpr int64_t kTokenBytes = 2 * 2 * 16 * 2;  // K and V, 2 heads of 16, bf16
  std::unique_ptr<base::Clock> clock_ = base::MakeSystemClock();
  std::unique_ptr<PrefillEngine> engine_;
};

TEST_F(PrefillEngineTest, FramesAreValidAndKeepTheirSize) {
  const auto maps = Tiny().RandomMaps(2);
  for (int64_t frame_bytes :
       {int64_t{1}, int64_t{5000}, 64 * kTokenBytes, 200 * kTokenBytes, int64_t{1} << 20}) {
    Start({.chunk_tokens = 128, .context_tokens = 512, .frame_bytes = frame_bytes}, maps.get());
    for (const auto& decision : {ExactOnDecode(1), ExactOnDecode(3), ExactOnPrefill(), Speed(2, 50),
                                 Quality(2, 50, 0.3f), Hidden(Speed(2, 50)), Hidden(Quality(2, 50, 0.3f)),
                                 Hidden(Quality(2, 50, 0.3f, ridge::Selector::kProbe))}) {
      const PrefillCall call = Call(300, decision);
      const auto seen = Run(call);
      ASSERT_EQ(seen->Wait(), absl::OkStatus());
      ASSERT_EQ(Check(call, seen->All()), absl::OkStatus());
      for (const KvFrame& frame : seen->All()) {
        // One block of one layer, or one residual row, is the least that a frame can hold.
        EXPECT_LE(static_cast<int64_t>(frame.payload.size()), std::max(frame_bytes, 64 * kTokenBytes));
      }
    }
    engine_.reset();
  }
}

TEST_F(PrefillEngineTest, LayersOfAChunkShareAFrame) {
  Start({.chunk_tokens = 64, .context_tokens = 512, .frame_bytes = 1 << 20});
  const auto seen = Run(Call(64, ExactOnPrefill()));
  ASSERT_EQ(seen->Wait(), absl::OkStatus());
  ASSERT_EQ(seen->count(), 4u) << "all layers' K and V, the last row, plan, sealed";
  const std::vector<KvFrame> frames = seen->All();
  const KvBody& kv = std::get<KvBody>(frames[0].body);
  EXPECT_EQ(kv.layer_begin, 0);
  EXPECT_EQ(kv.layer_end, 4);
}

TEST_F(PrefillEngineTest, PlanCountsAndTimes) {
  const auto maps = Tiny().RandomMaps(2);
  Start({.chunk_tokens = 64, .context_tokens = 512}, maps.get());
  const auto seen = Run(Call(300, Speed(2, 50)));
  ASSERT_EQ(seen->Wait(), absl::OkStatus());
  const std::vector<KvFrame> frames = seen->All();
  const PlanBody& plan = std::get<PlanBody>(frames[frames.size() - 2].body);
  EXPECT_EQ(plan.plan.tail_begin, 250);
  EXPECT_EQ(plan.plan.outliers, std::vector<int32_t>({0}));
  EXPECT_GT(plan.compute_time, absl::ZeroDuration());
  EXPECT_GE(plan.queue_time, absl::ZeroDuration());
  const PrefillStats stats = engine_->Stats();
  EXPECT_EQ(stats.prompt_tokens, 300);
  EXPECT_EQ(stats.filled_tokens, 249);
  EXPECT_EQ(stats.exact_tokens, 51);
  EXPECT_EQ(stats.frames, static_cast<int64_t>(frames.size()));
  EXPECT_EQ(stats.requests_ok, 1);
  EXPECT_EQ(stats.blocks_free, stats.blocks_total);
}

TEST_F(PrefillEngineTest, HiddenFormSendsEveryRowAndNoLateKv) {
  Start({.chunk_tokens = 64, .context_tokens = 512});
  const auto seen = Run(Call(300, Hidden(Quality(2, 50, 0.3f))));
  ASSERT_EQ(seen->Wait(), absl::OkStatus());
  int64_t rows = 0, scores = 0;
  for (const KvFrame& frame : seen->All()) {
    if (const auto* kv = std::get_if<KvBody>(&frame.body)) {
      EXPECT_LE(kv->layer_end, 2);
    }
    if (const auto* hidden = std::get_if<HiddenBody>(&frame.body)) {
      rows += static_cast<int64_t>(hidden->positions.size());
    }
    scores += std::holds_alternative<ScoresBody>(frame.body);
  }
  EXPECT_EQ(rows, 300);
  EXPECT_EQ(scores, 1);
  const PrefillStats stats = engine_->Stats();
  EXPECT_EQ(stats.hidden_tokens, 300);
  EXPECT_EQ(stats.filled_tokens + stats.exact_tokens + stats.selected_tokens, 0);
}

TEST_F(PrefillEngineTest, AFullSinkHoldsUpNobodyElse) {
  Start({.chunk_tokens = 64, .context_tokens = 256});
  auto full = std::make_shared<Seen>();
  full->room = false;
  ASSERT_TRUE(Submit(Call(250, ExactOnDecode(2)), full).ok());
  const auto other = Run(Call(250, ExactOnDecode(2)));
  EXPECT_EQ(other->Wait(), absl::OkStatus());
  EXPECT_EQ(full->count(), 0u);
  full->GiveRoom();
  EXPECT_EQ(full->Wait(), absl::OkStatus());
}

TEST_F(PrefillEngineTest, NobodyOvertakesARequestThatWaitsForBlocks) {
  Start({.chunk_tokens = 64, .context_tokens = 256, .cache_blocks = 5});
  auto holder = std::make_shared<Seen>();
  holder->room = false;
  ASSERT_TRUE(Submit(Call(200, ExactOnDecode(2)), holder).ok());  // 4 blocks of 5
  const auto large = Run(Call(200, ExactOnDecode(2)));
  const auto small = Run(Call(10, ExactOnDecode(2)));  // would fit
  absl::SleepFor(absl::Milliseconds(150));
  EXPECT_FALSE(small->ended());
  holder->GiveRoom();
  EXPECT_EQ(large->Wait(), absl::OkStatus());
  EXPECT_EQ(small->Wait(), absl::OkStatus());
}

TEST_F(PrefillEngineTest, CancelAndDeadlineFreeBlocks) {
  Start({.chunk_tokens = 64, .context_tokens = 256});
  auto cancelled = std::make_shared<Seen>(), late = std::make_shared<Seen>();
  cancelled->room = late->room = false;
  ASSERT_TRUE(Submit(Call(250, ExactOnDecode(2)), cancelled).ok());
  PrefillCall call = Call(250, ExactOnDecode(2));
  call.deadline = absl::Now() + absl::Milliseconds(80);
  ASSERT_TRUE(Submit(call, late).ok());
  cancelled->cancelled = true;
  cancelled->GiveRoom();
  EXPECT_EQ(cancelled->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(late->Wait().code(), absl::StatusCode::kDeadlineExceeded);
  const PrefillStats stats = engine_->Stats();
  EXPECT_EQ(stats.blocks_free, stats.blocks_total);
  EXPECT_EQ(stats.requests_cancelled, 1);
  EXPECT_EQ(stats.requests_failed, 1);
}

TEST_F(PrefillEngineTest, BoundedQueueDrainAndDestruction) {
  Start({.chunk_tokens = 64, .context_tokens = 256, .max_queued = 2});
  std::vector<std::shared_ptr<Seen>> stuck;
  absl::Status full;
  while (full.ok() && stuck.size() < 10) {
    stuck.push_back(std::make_shared<Seen>());
    stuck.back()->room = false;
    full = Submit(Call(100, ExactOnDecode(2)), stuck.back());
  }
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(full), "PREFILL_QUEUE_FULL");
  EXPECT_EQ(stuck.size(), 3u);
  EXPECT_EQ(engine_->Stats().queued, 2);
  EXPECT_EQ(engine_->Stats().queued_tokens, 200);
  EXPECT_FALSE(engine_->Drain(absl::Now() + absl::Milliseconds(20)));
  const absl::Status draining = Submit(Call(10, ExactOnDecode(2)), std::make_shared<Seen>());
  EXPECT_EQ(ReasonOf(draining), "DRAINING");
  EXPECT_EQ(draining.code(), absl::StatusCode::kUnavailable);
  stuck[0]->GiveRoom();
  EXPECT_EQ(stuck[0]->Wait(), absl::OkStatus());
  engine_.reset();
  EXPECT_EQ(ReasonOf(stuck[1]->Wait()), "SHUTDOWN");
  EXPECT_EQ(stuck[1]->Wait().code(), absl::StatusCode::kUnavailable);
}

// The engine's thread takes requests over while others are submitted: at no moment is one counted nowhere.
TEST_F(PrefillEngineTest, QueuedRequestsAreAlwaysCounted) {
  Start({.chunk_tokens = 64, .context_tokens = 256, .max_queued = 1000});
  std::vector<std::shared_ptr<Seen>> stuck;
  for (int submitted = 1; submitted <= 500; ++submitted) {
    stuck.push_back(std::make_shared<Seen>());
    stuck.back()->room = false;
    ASSERT_EQ(Submit(Call(100, ExactOnDecode(2)), stuck.back()), absl::OkStatus());
    const PrefillStats stats = engine_->Stats();
    ASSERT_EQ(stats.queued, submitted);
    ASSERT_EQ(stats.queued_tokens, 100 * submitted);
  }
}

TEST_F(PrefillEngineTest, RefusesByName) {
  const auto maps = Tiny().RandomMaps(2);
  Start({.context_tokens = 256}, maps.get());
  const auto refused = [&](const PrefillCall& call) {
    return ReasonOf(Submit(call, std::make_shared<Seen>()));
  };
  EXPECT_EQ(refused(Call(0, ExactOnPrefill())), "PROMPT_EMPTY");
  EXPECT_EQ(refused(Call(257, ExactOnPrefill())), "CONTEXT_LENGTH");
  EXPECT_EQ(refused(Call(10, Speed(1, 5))), "MAPS_OTHER_SPLIT");
  EXPECT_EQ(refused(Call(10, Local())), "DECISION_LOCAL");
  EXPECT_EQ(refused(Call(10, Quality(1, 5, 0.1f))), "MAPS_OTHER_SPLIT");
  EXPECT_EQ(refused(Call(10, Quality(2, 5, 1.5f))), "DECISION_SHARE");
  PrefillCall call = Call(10, ExactOnPrefill());
  call.tokens[7] = 100000;
  EXPECT_EQ(refused(call), "TOKEN_ID_RANGE");
  call = Call(10, Speed(2, 5));
  call.hello.maps = {{1, "maps"}, {2, "another map set"}};
  EXPECT_EQ(refused(call), "PEER_MAPS");
  call.decision = ExactOnPrefill();
  EXPECT_EQ(refused(call), "OK") << "EXACT does not look at maps";
  call.decision = Hidden(Speed(2, 5));
  EXPECT_EQ(refused(call), "PEER_MAPS") << "the router's split came from this worker's maps";
  EXPECT_EQ(refused(Call(10, Quality(2, 5, 0.1f, ridge::Selector::kProbe))), "DECISION_WIRE_FORM");
  call = Call(10, Speed(2, 5));
  call.hello.maps.clear();
  EXPECT_EQ(refused(call), "OK") << "a decode worker without maps takes K and V ready-made";
  call.hello.protocol_major = 9;
  EXPECT_EQ(refused(call), "PEER_PROTOCOL");
  EXPECT_TRUE(engine_->Drain(absl::Now() + absl::Seconds(30)));
}

TEST_F(PrefillEngineTest, OptionsAreChecked) {
  const auto reason = [&](const PrefillEngineOptions& options) {
    return ReasonOf(PrefillEngine::Create(Tiny().model(), {}, Tiny().MakeHello(), *clock_, options).status());
  };
  EXPECT_EQ(reason({.chunk_tokens = 100}), "CHUNK_TOKENS");
  EXPECT_EQ(reason({.context_tokens = 512, .cache_blocks = 7}), "CACHE_TOO_SMALL");
  EXPECT_EQ(reason({.max_queued = 0}), "PREFILL_OPTIONS");
}

class LowerLayersTest : public PrefillEngineTest {
 protected:
  // A worker that holds layers [0, layer_end) only must send what one with all layers sends, byte for byte.
  void ExpectSameFrames(const PrefillCall& call, int layer_end, bool with_maps = true) {
    const auto maps = Tiny().RandomMaps(1);
    Start({.chunk_tokens = 64, .context_tokens = 256}, maps.get());
    const auto want = Run(call);
    ASSERT_EQ(want->Wait(), absl::OkStatus());
    engine_.reset();
    const TinyModel lower(*kernels::MakeCpuBackend({.threads = 1}), layer_end);
    const auto lower_maps = with_maps ? lower.RandomMaps(1) : nullptr;
    Start({.chunk_tokens = 64, .context_tokens = 256}, lower_maps.get(), lower);
    const auto got = Run(call);
    EXPECT_EQ(got->Wait(), absl::OkStatus());
    EXPECT_EQ(ReasonOf(Submit(Call(10, ExactOnPrefill()), std::make_shared<Seen>())), "LAYERS_NOT_LOADED");
    EXPECT_EQ(ReasonOf(Submit(Call(10, ExactOnDecode(3)), std::make_shared<Seen>())), "LAYERS_NOT_LOADED");
    engine_.reset();
    const std::vector<KvFrame> want_frames = want->All(), got_frames = got->All();
    ASSERT_EQ(got_frames.size(), want_frames.size());
    for (size_t i = 0; i < want_frames.size(); ++i) {
      EXPECT_TRUE(got_frames[i].payload == want_frames[i].payload) << "frame " << i;
    }
  }
};

TEST_F(LowerLayersTest, AreEnoughForExactWithTheLatePassOnDecode) {
  ExpectSameFrames(Call(200, ExactOnDecode(1)), 1);
}

TEST_F(LowerLayersTest, AndTheSplitLayerAndMapsAreEnoughForSpeed) {
  ExpectSameFrames(Call(200, Speed(1, 40)), 2);
}

TEST_F(LowerLayersTest, AndForQuality) { ExpectSameFrames(Call(200, Quality(1, 40, 0.3f)), 2); }

// Neither the split layer nor maps.
TEST_F(LowerLayersTest, AloneAreEnoughForWireFormHidden) {
  for (const auto& decision : {Hidden(Speed(1, 40)), Hidden(Quality(1, 40, 0.3f))}) {
    ExpectSameFrames(Call(200, decision), 1, /*with_maps=*/false);
  }
}

TEST_F(LowerLayersTest, AreNotEnoughForUnfoldedMaps) {
  const TinyModel lower(*kernels::MakeCpuBackend({.threads = 1}), 2);
  const auto maps = lower.RandomMaps(1, 0, MapKind::kUnfolded);
  Start({.chunk_tokens = 64, .context_tokens = 256}, maps.get(), lower);
  EXPECT_EQ(ReasonOf(Submit(Call(200, Speed(1, 40)), std::make_shared<Seen>())), "LAYERS_NOT_LOADED");
  EXPECT_EQ(Run(Call(200, ExactOnDecode(1)))->Wait(), absl::OkStatus());
  engine_.reset();
}

}  // namespace
}  // namespace ridgefill::runtime
