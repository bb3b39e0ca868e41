// The two engines together: oracles bit for bit, counts, batching, cancels, ends.
#include "engine/runtime/decode_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/synchronization/notification.h"
#include "engine/base/rng.h"
#include "tests/engine/runtime/trio.h"

namespace ridgefill::runtime {
namespace {

constexpr int64_t kAnswer = 5;

std::unique_ptr<kernels::Backend> MakeBackend(const std::string& name) {
  if (name == "reference") return kernels::MakeReferenceBackend();
  return *kernels::MakeCpuBackend({.threads = 2});
}

class OracleTest : public testing::TestWithParam<std::string> {
 protected:
  const TinyModel& tiny() const { return tiny_; }
  // The reference backend is slow in a sanitizer build.
  int64_t longest() const { return GetParam() == "reference" ? 140 : 260; }
  TrioOptions Options() const {
    TrioOptions options;
    options.tiny = &tiny_;
    return options;
  }

 private:
  const TinyModel tiny_{MakeBackend(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Backends, OracleTest, testing::Values("reference", "cpu"),
                         [](const auto& info) { return info.param; });

// The plan that the norms of the lower layers give.
ridge::FillPlan PlanFor(const TinyModel& tiny, const std::vector<int32_t>& tokens,
                        const ridge::FillDecision& decision, float threshold) {
  const std::vector<float> norms = PlainRowNorms(tiny, tokens, decision.split);
  const int64_t count = static_cast<int64_t>(tokens.size());
  std::vector<int32_t> outliers;
  for (int64_t i = 0; i < ridge::TailBegin(decision, count); ++i) {
    if (ridge::IsOutlier(i, norms[i], threshold)) outliers.push_back(static_cast<int32_t>(i));
  }
  return ridge::MakeFillPlan(decision, count, outliers, {});
}

// All-rows-exact equals a plain forward, whatever the split, the chunks, the pieces and the place of the late
// pass.
TEST_P(OracleTest, EveryExactRouteEqualsAPlainForward) {
  base::Rng rng(11);
  for (int64_t chunk : {64, 192}) {
    for (int64_t piece : {1, 37, 256}) {
      TrioOptions options = Options();
      options.prefill.chunk_tokens = chunk;
      options.decode.piece_tokens = piece;
      options.prefill.frame_bytes = 1 << (8 + rng.NextBelow(12));
      Trio trio(options);
      const int64_t length = 1 + static_cast<int64_t>(rng.NextBelow(piece == 1 ? 70 : longest()));
      const auto tokens = RandomTokens(length, length, tiny().vocab());
      SCOPED_TRACE(absl::StrCat("chunk ", chunk, ", piece ", piece, ", prompt ", length));
      const Answer want = PlainAnswer(tiny(), tokens, kAnswer);
      Answer without_prompt = want;
      without_prompt.prompt_logprobs.clear();

      DecodeCall local = GreedyCall(tokens, Local(), kAnswer);
      local.prompt_logprobs = true;
      ExpectSame(trio.Run(local), want);
      for (int split = 1; split < tiny().layers(); ++split) {
        DecodeCall call = GreedyCall(tokens, ExactOnDecode(split), kAnswer);
        call.prompt_logprobs = true;
        ExpectSame(trio.Run(call), want);
      }
      ExpectSame(trio.Run(GreedyCall(tokens, ExactOnPrefill(), kAnswer)), without_prompt);
    }
  }
}

TEST_P(OracleTest, BlockAndChunkBorders) {
  Trio trio(Options());
  for (int64_t length : {1, 2, 63, 64, 65, 127, 128, 129}) {
    SCOPED_TRACE(length);
    const auto tokens = RandomTokens(length, length, tiny().vocab());
    Answer want = PlainAnswer(tiny(), tokens, kAnswer);
    want.prompt_logprobs.clear();
    ExpectSame(trio.Run(GreedyCall(tokens, Local(), kAnswer)), want);
    ExpectSame(trio.Run(GreedyCall(tokens, ExactOnDecode(2), kAnswer)), want);
    ExpectSame(trio.Run(GreedyCall(tokens, ExactOnPrefill(), kAnswer)), want);
  }
}

TEST_P(OracleTest, FilledPrefillEqualsTheMethodOnWholeTensors) {
  base::Rng rng(12);
  for (int split = 1; split < tiny().layers(); ++split) {
    const auto probe = RandomTokens(1, 200, tiny().vocab());
    std::vector<float> norms = PlainRowNorms(tiny(), probe, split);
    std::nth_element(norms.begin(), norms.begin() + 190, norms.end());
    const float threshold = norms[190];  // about one row in twenty
    const auto maps = tiny().RandomMaps(split, threshold);
    TrioOptions options = Options();
    options.maps = maps.get();
    options.prefill.chunk_tokens = split == 2 ? 128 : 64;
    options.decode.piece_tokens = 1 + static_cast<int64_t>(rng.NextBelow(60));
    Trio trio(options);
    int64_t outliers = 0;
    for (int64_t length : {33, 40, 128, 150, 231}) {
      SCOPED_TRACE(absl::StrCat("split ", split, ", prompt ", length));
      const auto tokens = RandomTokens(length, length, tiny().vocab());
      const ridge::FillDecision decision = Speed(split, 32);
      const PlainFill fill{maps.get(), PlanFor(tiny(), tokens, decision, threshold)};
      StartedEvent started;
      ExpectSame(trio.Run(GreedyCall(tokens, decision, kAnswer), &started),
                 PlainAnswer(tiny(), tokens, kAnswer, &fill));
      EXPECT_EQ(started.report.mode, ridge::Mode::kSpeed);
      EXPECT_EQ(started.report.split, split);
      EXPECT_EQ(started.report.tail, 32);
      EXPECT_EQ(started.report.prompt_tokens, length);
      EXPECT_EQ(started.report.filled, fill.plan.filled_count());
      EXPECT_EQ(started.report.exact, fill.plan.exact_count());
      EXPECT_EQ(started.report.outliers, static_cast<int64_t>(fill.plan.outliers.size()));
      EXPECT_EQ(started.report.filled + started.report.exact, length);
      EXPECT_EQ(started.report.reason, "REQUESTED");
      EXPECT_TRUE(started.report.batch_invariant);
      outliers += started.report.outliers;
    }
    EXPECT_GT(outliers, 5) << "the threshold must find rows besides row 0";
  }
}

TEST_P(OracleTest, APromptWithinTheTailRunsExactInSpeedToo) {
  const auto maps = tiny().RandomMaps(2);
  TrioOptions options = Options();
  options.maps = maps.get();
  Trio trio(options);
  const auto tokens = RandomTokens(5, 90, tiny().vocab());
  Answer want = PlainAnswer(tiny(), tokens, kAnswer);
  want.prompt_logprobs.clear();
  StartedEvent started;
  ExpectSame(trio.Run(GreedyCall(tokens, Speed(2, 90), kAnswer), &started), want);
  EXPECT_EQ(started.report.filled, 0);
  EXPECT_EQ(started.report.exact, 90);
}

// Negative control: random maps must not give the exact answer, or the oracle above would show nothing.
TEST(NegativeControlTest, TheFillChangesTheAnswer) {
  const auto maps = Tiny().RandomMaps(2);
  TrioOptions options;
  options.maps = maps.get();
  Trio trio(options);
  const auto tokens = RandomTokens(6, 200, Tiny().vocab());
  const Answer exact = PlainAnswer(Tiny(), tokens, 1);
  const Answer filled = trio.Run(GreedyCall(tokens, Speed(2, 32), 1));
  EXPECT_NE(exact.tokens[0].logprob, filled.tokens[0].logprob);
}

struct Load {
  DecodeCall call;
  Answer alone;
  Submitted submitted;
};

std::vector<Load> RandomLoad(uint64_t seed, int count, const ridge::DeviceMaps& maps,
                             const TinyModel& tiny = Tiny(), int64_t longest_answer = 12) {
  base::Rng rng(seed);
  std::vector<Load> loads(count);
  const int split = maps.manifest().split;
  for (int i = 0; i < count; ++i) {
    const auto tokens =
        RandomTokens(seed * 1000 + i, 1 + static_cast<int64_t>(rng.NextBelow(120)), tiny.vocab());
    const ridge::FillDecision routes[] = {Local(), ExactOnDecode(split), ExactOnPrefill(), Speed(split, 16)};
    const ridge::FillDecision& decision = routes[rng.NextBelow(4)];
    loads[i].call = GreedyCall(tokens, decision, 1 + static_cast<int64_t>(rng.NextBelow(longest_answer)));
    const PlainFill fill{&maps, decision.mode == ridge::Mode::kSpeed ? PlanFor(tiny, tokens, decision, 0.0f)
                                                                     : ridge::FillPlan()};
    const bool filled = fill.plan.tail_begin > 0;
    loads[i].alone = PlainAnswer(tiny, tokens, loads[i].call.max_tokens, filled ? &fill : nullptr);
    loads[i].alone.prompt_logprobs.clear();
  }
  return loads;
}

TEST_P(OracleTest, ManyConcurrentRequestsAnswerAsAlone) {
  const auto maps = tiny().RandomMaps(2);
  TrioOptions options = Options();
  options.maps = maps.get();
  options.decode.max_running = 20;
  Trio trio(options);
  const int count = GetParam() == "reference" ? 20 : 80;
  std::vector<Load> loads = RandomLoad(21, count, *maps, tiny());
  for (Load& load : loads) load.submitted = trio.Start(load.call);
  for (const Load& load : loads) {
    const FinishedEvent end = load.submitted.out->Wait();
    ASSERT_EQ(end.status, absl::OkStatus());
    EXPECT_EQ(end.reason, FinishReason::kLength);
    EXPECT_EQ(end.generated, load.call.max_tokens);
    ExpectSame(load.submitted.out->answer(), load.alone);
  }
  EXPECT_TRUE(trio.AllFree());
  const DecodeStats stats = trio.decode().Stats();
  EXPECT_EQ(stats.requests_ok, count);
  EXPECT_GT(stats.decode_rows, stats.steps) << "requests must have shared steps";
  EXPECT_EQ(stats.prompt_tokens, stats.filled_tokens + stats.exact_tokens);
}

// Too few blocks for all: requests queue, and the answers stay the same.
TEST(BatchTest, AFullCacheQueuesAndLosesNothing) {
  const auto maps = Tiny().RandomMaps(2);
  TrioOptions options;
  options.maps = maps.get();
  options.prefill.context_tokens = 192;
  options.decode.context_tokens = 192;
  options.decode.cache_blocks = 4;
  Trio trio(options);
  std::vector<Load> loads = RandomLoad(22, 16, *maps);
  for (Load& load : loads) load.submitted = trio.Start(load.call);
  for (const Load& load : loads) {
    ASSERT_EQ(load.submitted.out->Wait().status, absl::OkStatus());
    ExpectSame(load.submitted.out->answer(), load.alone);
  }
  EXPECT_TRUE(trio.AllFree());
}

TEST(CancelTest, RandomCancelsFreeEverythingAndTouchNobodyElse) {
  const auto maps = Tiny().RandomMaps(2);
  TrioOptions options;
  options.maps = maps.get();
  options.decode.cache_blocks = 16;
  Trio trio(options);
  std::vector<Load> loads = RandomLoad(23, 60, *maps, Tiny(), /*longest_answer=*/120);
  base::Rng rng(24);
  std::vector<bool> cancelled(loads.size());
  for (size_t i = 0; i < loads.size(); ++i) {
    loads[i].submitted = trio.Start(loads[i].call);
    if (rng.NextBelow(3) != 0) continue;
    const size_t victim = rng.NextBelow(i + 1);
    absl::SleepFor(absl::Microseconds(rng.NextBelow(4000)));
    trio.decode().Cancel(loads[victim].submitted.handle);
    cancelled[victim] = true;
  }
  for (size_t i = 0; i < loads.size(); ++i) {
    const FinishedEvent end = loads[i].submitted.out->Wait();
    if (end.status.ok()) {
      ExpectSame(loads[i].submitted.out->answer(), loads[i].alone);
    } else {
      EXPECT_TRUE(cancelled[i]);
      EXPECT_EQ(end.status.code(), absl::StatusCode::kCancelled);
    }
  }
  EXPECT_TRUE(trio.AllFree());
  const DecodeStats stats = trio.decode().Stats();
  EXPECT_EQ(stats.requests_ok + stats.requests_cancelled, 60);
  EXPECT_GT(stats.requests_cancelled, 0)
      << "the load must be heavy enough for some cancels to meet their request";
  EXPECT_EQ(stats.queued + stats.receiving + stats.finishing + stats.running, 0);
}

TEST(CancelTest, TakesEffectWithinAStepAndTheEndComesAfterTheBlocks) {
  Trio trio;
  absl::Notification reached, go_on;
  Submitted one;
  one.out->on_token = [&](size_t tokens) {
    if (tokens != 3) return;
    reached.Notify();
    go_on.WaitForNotification();  // holds the engine inside a step
  };
  one = trio.Start(GreedyCall(RandomTokens(1, 100, Tiny().vocab()), Local(), 400), one);
  reached.WaitForNotification();
  EXPECT_EQ(trio.decode().Stats().blocks_used, 8);
  EXPECT_EQ(trio.decode().Stats().running, 1);
  trio.decode().Cancel(one.handle);
  go_on.Notify();
  EXPECT_EQ(ReasonOf(one.out->Wait().status), "CANCELLED");
  EXPECT_EQ(trio.decode().Stats().blocks_used, 0);
  EXPECT_EQ(one.out->answer().tokens.size(), 3u);
  trio.decode().Cancel(one.handle);  // no longer known: ignored
  trio.decode().Cancel(999);
}

TEST(CancelTest, ReachesThePrefillWorker) {
  TrioOptions options;
  options.transport.max_frames = 0;  // never any room: the prompt stays queued at the prefill engine
  Trio trio(options);
  const Submitted one = trio.Start(GreedyCall(RandomTokens(1, 300, Tiny().vocab()), ExactOnDecode(2), 4));
  while (trio.decode().Stats().receiving == 0) absl::SleepFor(absl::Milliseconds(1));
  trio.decode().Cancel(one.handle);
  EXPECT_EQ(one.out->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(trio.AllFree());
  EXPECT_EQ(trio.prefill().Stats().requests_cancelled, 1);
}

TEST(EndTest, DestroyedEnginesFinishEverySink) {
  const auto maps = Tiny().RandomMaps(2);
  TrioOptions options;
  options.maps = maps.get();
  options.decode.cache_blocks = 16;
  Trio trio(options);
  std::vector<Submitted> all;
  for (int i = 0; i < 24; ++i) {
    const ridge::FillDecision routes[] = {Local(), ExactOnDecode(2), ExactOnPrefill(), Speed(2, 16)};
    all.push_back(trio.Start(GreedyCall(RandomTokens(i, 60 + i, Tiny().vocab()), routes[i % 4], 300)));
  }
  ASSERT_TRUE(all[0].out->WaitFor(2));
  trio.StopDecode();
  int unavailable = 0;
  for (const Submitted& one : all) {
    ASSERT_TRUE(one.out->finished());
    const absl::Status status = one.out->Wait().status;
    if (status.ok()) continue;
    EXPECT_EQ(ReasonOf(status), "SHUTDOWN");
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    ++unavailable;
  }
  EXPECT_GT(unavailable, 0);
}

TEST(EndTest, APrefillWorkerThatStopsIsUnavailable) {
  TrioOptions options;
  options.transport.stall_after = 1;  // the first chunk goes out, the second never starts
  Trio trio(options);
  const auto tokens = RandomTokens(1, 500, Tiny().vocab());
  const Submitted one = trio.Start(GreedyCall(tokens, ExactOnDecode(3), 4));
  while (trio.decode().Stats().transfer_frames == 0) absl::SleepFor(absl::Microseconds(50));
  trio.StopPrefill();
  const FinishedEvent end = one.out->Wait();
  EXPECT_EQ(end.status.code(), absl::StatusCode::kUnavailable) << end.status;
  EXPECT_TRUE(one.out->answer().tokens.empty());
}

TEST(EndTest, DrainWaitsForWhatRunsAndRefusesTheRest) {
  absl::Notification go_on;
  TrioOptions options;
  options.transport.fault = [&](KvFrame frame) {
    go_on.WaitForNotification();
    return std::vector<KvFrame>{std::move(frame)};
  };
  Trio trio(options);
  const Submitted one = trio.Start(GreedyCall(RandomTokens(1, 50, Tiny().vocab()), ExactOnPrefill(), 40));
  EXPECT_FALSE(trio.decode().Drain(absl::InfinitePast()));
  const absl::Status refused = Submit(trio.decode(), GreedyCall({1, 2, 3}, Local(), 1)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), "DRAINING");
  go_on.Notify();
  EXPECT_TRUE(trio.decode().Drain(absl::Now() + absl::Seconds(60)));
  EXPECT_TRUE(one.out->finished());
  EXPECT_TRUE(one.out->Wait().status.ok());
}

TEST(EndTest, StopIdEndsTheAnswer) {
  const auto tokens = RandomTokens(4, 70, Tiny().vocab());
  const Answer want = PlainAnswer(Tiny(), tokens, 8);
  TrioOptions options;
  options.decode.eos_ids = {want.tokens[3].token};
  Trio trio(options);
  DecodeCall call = GreedyCall(tokens, Local(), 8);
  call.sampling.ignore_eos = false;
  const Submitted one = trio.Start(call);
  const FinishedEvent end = one.out->Wait();
  EXPECT_EQ(end.reason, FinishReason::kStop);
  const Answer got = one.out->answer();
  EXPECT_EQ(end.generated, static_cast<int64_t>(got.tokens.size()));
  EXPECT_LE(got.tokens.size(), 4u);
  EXPECT_TRUE(got.tokens.back().is_stop);
  EXPECT_EQ(got.tokens.back().token, want.tokens[3].token);
}

TEST(LimitTest, DeadlinePassesWhileQueuedReceivingAndRunning) {
  TrioOptions options;
  options.transport.max_frames = 0;  // a transfer that never moves
  options.decode.cache_blocks = 9;   // the first request leaves 1 block
  Trio trio(options);
  const auto tokens = RandomTokens(1, 300, Tiny().vocab());
  DecodeCall call = GreedyCall(tokens, ExactOnDecode(2), 200);
  call.deadline = absl::Now() + absl::Milliseconds(150);
  const Submitted receiving = trio.Start(call);
  const Submitted queued = trio.Start(call);
  for (const Submitted* one : {&receiving, &queued}) {
    EXPECT_EQ(one->out->Wait().status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_FALSE(one->out->started().has_value());
  }
  DecodeCall running = GreedyCall(RandomTokens(1, 20, Tiny().vocab()), Local(), 480);
  running.deadline = absl::Now() + absl::Milliseconds(60);
  const Submitted one = trio.Start(running);
  const FinishedEvent end = one.out->Wait();
  EXPECT_TRUE(end.status.ok() || end.status.code() == absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(trio.AllFree());
}

TEST(LimitTest, QueueIsBoundedInLengthAndTime) {
  TrioOptions options;
  options.transport.max_frames = 0;
  options.decode.cache_blocks = 8;
  options.decode.max_queued = 2;
  options.decode.queue_timeout = absl::Seconds(30);
  base::ManualClock clock;
  options.clock = &clock;
  Trio trio(options);
  const DecodeCall call = GreedyCall(RandomTokens(1, 400, Tiny().vocab()), ExactOnDecode(2), 100);
  const Submitted holds = trio.Start(call);
  while (trio.decode().Stats().receiving == 0) absl::SleepFor(absl::Milliseconds(1));
  const Submitted second = trio.Start(call), third = trio.Start(call);
  const absl::Status full = Submit(trio.decode(), call).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(full), "DECODE_QUEUE_FULL");
  EXPECT_EQ(trio.decode().Stats().queued, 2);
  clock.Advance(absl::Seconds(31));
  EXPECT_EQ(ReasonOf(second.out->Wait().status), "DECODE_QUEUE_TIMEOUT");
  EXPECT_EQ(ReasonOf(third.out->Wait().status), "DECODE_QUEUE_TIMEOUT");
  EXPECT_EQ(trio.decode().Stats().requests_rejected, 3);
  EXPECT_EQ(trio.decode().Stats().requests_failed, 0);
  trio.decode().Cancel(holds.handle);
  holds.out->Wait();
}

TEST(RefusalTest, BadCallsAreRefusedByName) {
  Trio trio;
  const auto refused = [&](auto change) {
    DecodeCall call = GreedyCall(RandomTokens(1, 20, Tiny().vocab()), Local(), 4);
    change(call);
    return ReasonOf(Submit(trio.decode(), call).status());
  };
  EXPECT_EQ(refused([](DecodeCall& c) { c.tokens.clear(); }), "PROMPT_EMPTY");
  EXPECT_EQ(refused([](DecodeCall& c) { c.tokens[3] = Tiny().vocab(); }), "TOKEN_ID_RANGE");
  EXPECT_EQ(refused([](DecodeCall& c) { c.tokens[3] = -1; }), "TOKEN_ID_RANGE");
  EXPECT_EQ(refused([](DecodeCall& c) { c.max_tokens = 0; }), "MAX_TOKENS_RANGE");
  EXPECT_EQ(refused([](DecodeCall& c) { c.max_tokens = 493; }), "CONTEXT_LENGTH");
  EXPECT_EQ(refused([](DecodeCall& c) { c.max_tokens = INT64_MAX; }), "CONTEXT_LENGTH");
  EXPECT_EQ(refused([](DecodeCall& c) { c.decision.mode = ridge::Mode::kQuality; }), "MODE_QUALITY");
  EXPECT_NE(refused([](DecodeCall& c) { c.sampling.top_p = 3; }), "OK");
  EXPECT_EQ(refused([](DecodeCall& c) { c.decision = ExactOnPrefill(), c.prompt_logprobs = true; }),
            "PROMPT_LOGPROBS");
  EXPECT_EQ(refused([](DecodeCall& c) { c.decision = Speed(2, 8), c.prompt_logprobs = true; }),
            "PROMPT_LOGPROBS");
}

TEST(RefusalTest, ErrorsOfThePeerReachTheSink) {
  Trio trio;
  const auto tokens = RandomTokens(1, 100, Tiny().vocab());
  const Submitted no_maps = trio.Start(GreedyCall(tokens, Speed(2, 16), 4));
  EXPECT_EQ(ReasonOf(no_maps.out->Wait().status), "NO_MAPS");
  EXPECT_EQ(no_maps.out->Wait().status.code(), absl::StatusCode::kFailedPrecondition);
  DecodeCall nowhere = GreedyCall(tokens, ExactOnPrefill(), 4);
  nowhere.prefill_address = "nowhere";
  EXPECT_EQ(ReasonOf(trio.Start(nowhere).out->Wait().status), "NO_WORKER");
  EXPECT_TRUE(trio.AllFree());
}

TEST(RefusalTest, WithoutSourcesOnlyLocalPrefillRuns) {
  const auto clock = base::MakeSystemClock();
  auto engine = DecodeEngine::Create(Tiny().model(), Tiny().MakeHello(), nullptr, *clock,
                                     {.context_tokens = 128, .cache_blocks = 2});
  ASSERT_TRUE(engine.ok());
  const auto tokens = RandomTokens(1, 20, Tiny().vocab());
  EXPECT_EQ(ReasonOf(Submit(**engine, GreedyCall(tokens, ExactOnPrefill(), 1)).status()),
            "NO_PREFILL_WORKERS");
  EXPECT_TRUE(Submit(**engine, GreedyCall(tokens, Local(), 1))->out->Wait().status.ok());
}

TEST(RefusalTest, ACacheThatHoldsNoWholeRequestIsRefusedAtStart) {
  const auto clock = base::MakeSystemClock();
  const auto engine = DecodeEngine::Create(Tiny().model(), Tiny().MakeHello(), nullptr, *clock,
                                           {.context_tokens = 500, .cache_blocks = 7});
  EXPECT_EQ(ReasonOf(engine.status()), "CACHE_TOO_SMALL");
  EXPECT_THAT(engine.status().message(), testing::HasSubstr("500 tokens needs 8 KV blocks"));
}

TEST(TimesTest, PartsAreThereAndFitTheWallClock) {
  Trio trio;
  const absl::Time begin = absl::Now();
  StartedEvent started;
  trio.Run(GreedyCall(RandomTokens(1, 200, Tiny().vocab()), ExactOnDecode(2), 1), &started);
  const absl::Duration wall = absl::Now() - begin;
  const FirstTokenTimes& t = started.times;
  EXPECT_GT(t.prefill_compute, absl::ZeroDuration());
  EXPECT_GT(t.late_pass, absl::ZeroDuration());
  EXPECT_LE(
      t.decode_queue + t.prefill_queue + t.prefill_compute + t.transfer_exposed + t.late_pass + t.first_step,
      wall + absl::Milliseconds(1));
}

TEST(LivenessTest, AnIdleEngineComesRound) {
  Trio trio;
  const auto fresh = [&](int i) {
    absl::SleepFor(absl::Milliseconds(300));
    const absl::Duration age =
        i == 0 ? trio.decode().Stats().last_step_age : trio.prefill().Stats().last_step_age;
    return age < absl::Milliseconds(150);
  };
  // Some tries, because the machine may be busy; a loop that sleeps without end never gets there.
  for (int engine : {0, 1}) {
    bool seen = false;
    for (int i = 0; i < 20 && !seen; ++i) seen = fresh(engine);
    EXPECT_TRUE(seen) << engine;
  }
}

}  // namespace
}  // namespace ridgefill::runtime
