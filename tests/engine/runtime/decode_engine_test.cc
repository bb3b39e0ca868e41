// The two engines together: queueing, cancels, ends, limits, refusals. oracle_test.cc has the answers'
// values.
#include "engine/runtime/decode_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/synchronization/notification.h"
#include "engine/base/rng.h"
#include "tests/engine/runtime/random_load.h"
#include "tests/engine/runtime/trio.h"

namespace ridgefill::runtime {
namespace {

// Too few blocks for all: requests queue, and the answers stay the same.
TEST(BatchTest, AFullCacheQueuesAndLosesNothing) {
  const auto maps = Tiny().RandomMaps(2);
  TrioOptions options;
  options.maps = {maps.get()};
  options.prefill.context_tokens = 192;
  options.decode.context_tokens = 192;
  options.decode.cache_blocks = 4;
  Trio trio(options);
  std::vector<Load> loads = RandomLoad(22, 16, *maps, Tiny(), /*longest_answer=*/12);
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
  options.maps = {maps.get()};
  options.decode.cache_blocks = 16;
  Trio trio(options);
  std::vector<Load> loads = RandomLoad(23, 60, *maps, Tiny(), /*longest_answer=*/60);
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
  options.maps = {maps.get()};
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
  EXPECT_EQ(refused([](DecodeCall& c) { c.decision = Quality(2, 8, 2.0f); }), "DECISION_SHARE");
  EXPECT_NE(refused([](DecodeCall& c) { c.sampling.top_p = 3; }), "OK");
  EXPECT_EQ(refused([](DecodeCall& c) { c.decision = ExactOnPrefill(), c.prompt_logprobs = true; }),
            "PROMPT_LOGPROBS");
  EXPECT_EQ(refused([](DecodeCall& c) { c.decision = Speed(2, 8), c.prompt_logprobs = true; }),
            "PROMPT_LOGPROBS");
}

TEST(RefusalTest, WireFormHiddenNeedsMapsOfTheSplitHere) {
  const auto maps = Tiny().RandomMaps(2);
  const auto tokens = RandomTokens(1, 100, Tiny().vocab());
  TrioOptions options;
  options.maps = {maps.get()};
  options.decode_has_maps = false;
  Trio without(options);
  for (const auto& decision : {Hidden(Speed(2, 16)), Hidden(Quality(2, 16, 0.1f, ridge::Selector::kProbe))}) {
    const absl::Status refused = Submit(without.decode(), GreedyCall(tokens, decision, 4)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(refused), "NO_MAPS");
  }
  EXPECT_TRUE(without.Start(GreedyCall(tokens, Speed(2, 16), 4)).out->Wait().status.ok());
  options.decode_has_maps = true;
  options.prefill_has_maps = false;
  Trio with(options);
  EXPECT_EQ(ReasonOf(Submit(with.decode(), GreedyCall(tokens, Hidden(Speed(1, 16)), 4)).status()),
            "MAPS_OTHER_SPLIT");
  EXPECT_TRUE(with.Start(GreedyCall(tokens, Hidden(Speed(2, 16)), 4)).out->Wait().status.ok());
  const DecodeStats stats = with.decode().Stats();
  EXPECT_EQ(stats.fill_rows, 84);
  EXPECT_EQ(stats.transfers_hidden, 1);
  EXPECT_EQ(stats.transfers_kv, 0);
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
  auto engine = DecodeEngine::Create(Tiny().model(), {}, Tiny().MakeHello(), nullptr, *clock,
                                     {.context_tokens = 128, .cache_blocks = 2});
  ASSERT_TRUE(engine.ok());
  const auto tokens = RandomTokens(1, 20, Tiny().vocab());
  EXPECT_EQ(ReasonOf(Submit(**engine, GreedyCall(tokens, ExactOnPrefill(), 1)).status()),
            "NO_PREFILL_WORKERS");
  EXPECT_TRUE(Submit(**engine, GreedyCall(tokens, Local(), 1))->out->Wait().status.ok());
}

TEST(RefusalTest, ACacheThatHoldsNoWholeRequestIsRefusedAtStart) {
  const auto clock = base::MakeSystemClock();
  const auto engine = DecodeEngine::Create(Tiny().model(), {}, Tiny().MakeHello(), nullptr, *clock,
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
