// What every transport promises, held against each of them: a scripted prefill engine at one end, a
// KvTransfer at the other, and for those that cross processes the real service on a real socket in between.
#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "engine/base/status.h"
#include "services/common/server.h"
#include "services/prefill/service.h"
#include "services/transport/transport.h"

namespace ridgefill::transport {
namespace {

constexpr int64_t kBound = 1 << 20;
constexpr absl::Duration kPatience = absl::Seconds(30);

// Hands each sink to the test.
class ScriptedEngine : public runtime::PrefillEngine {
 public:
  absl::Status Submit(runtime::PrefillCall call, std::unique_ptr<runtime::KvSink>& sink) override {
    absl::MutexLock lock(&mutex_);
    call_ = std::move(call);
    if (!refusal_.ok()) return refusal_;
    sink_ = std::move(sink);
    return absl::OkStatus();
  }
  bool Drain(absl::Time) override { return true; }
  runtime::PrefillStats Stats() const override { return {}; }

  void Refuse(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    refusal_ = std::move(status);
  }
  std::unique_ptr<runtime::KvSink> AwaitSink() {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(
                                +[](ScriptedEngine* e) { return e->sink_ != nullptr; }, this),
                            kPatience);
    return std::move(sink_);
  }
  runtime::PrefillCall call() {
    absl::MutexLock lock(&mutex_);
    return call_;
  }

 private:
  absl::Mutex mutex_;
  runtime::PrefillCall call_;
  absl::Status refusal_;
  std::unique_ptr<runtime::KvSink> sink_;
};

template <typename Condition>
bool Eventually(Condition condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

class TransportContractTest : public testing::TestWithParam<const Transport*> {
 protected:
  void SetUp() override {
    Options options;
    options.receive_buffer_bytes = kBound;
    options.local_engine = &engine_;
    std::string address = "local";
    if (GetParam()->capabilities.crosses_processes) {
      prefill::PrefillServiceOptions service_options;
      service_options.sink_buffer_bytes = kBound;
      service_ = std::make_unique<prefill::PrefillServiceImpl>(engine_, v1::DescribePrefillResponse(),
                                                               service_options);
      common::ServerOptions server_options;
      server_options.address = "127.0.0.1:0";
      server_options.services = {service_.get()};
      auto server = common::Server::Start(server_options);
      ASSERT_TRUE(server.ok()) << server.status();
      server_ = *std::move(server);
      address = absl::StrCat("127.0.0.1:", server_->port());
    }
    auto directory = GetParam()->connect(options);
    ASSERT_TRUE(directory.ok()) << directory.status();
    directory_ = *std::move(directory);
    source_ = *directory_->Find(address);
  }

  std::unique_ptr<runtime::KvTransfer> Open(absl::Time deadline = absl::InfiniteFuture()) {
    runtime::PrefillCall call;
    call.id = {7, 9};
    call.tokens = {1, 2, 3};
    call.decision.mode = ridge::Mode::kExact;
    call.deadline = deadline;
    return source_->Open(std::move(call), [this] { ++reader_woken_; });
  }

  static runtime::KvFrame Frame(uint64_t sequence, size_t bytes) {
    return {sequence, runtime::KvBody{0, 1, static_cast<int64_t>(sequence), 1}, std::string(bytes, 'k'), 5};
  }
  static runtime::KvFrame AwaitFrame(runtime::KvTransfer& transfer) {
    std::optional<runtime::KvFrame> frame;
    EXPECT_TRUE(Eventually([&] { return (frame = transfer.TryNext()).has_value(); }));
    return frame.value_or(runtime::KvFrame{});
  }
  static absl::Status AwaitEnd(runtime::KvTransfer& transfer) {
    EXPECT_TRUE(Eventually([&] { return transfer.Ended().has_value(); }));
    return transfer.Ended().value_or(absl::UnknownError("no end"));
  }

  ScriptedEngine engine_;
  std::unique_ptr<prefill::PrefillServiceImpl> service_;
  std::unique_ptr<common::Server> server_;
  std::unique_ptr<runtime::KvSourceDirectory> directory_;
  std::shared_ptr<runtime::KvSource> source_;
  std::atomic<int> reader_woken_ = 0;
};

TEST_P(TransportContractTest, FramesArriveWholeAndInOrderThenTheEnd) {
  const auto transfer = Open();
  auto sink = engine_.AwaitSink();
  EXPECT_EQ(engine_.call().id, (runtime::TransferId{7, 9}));
  EXPECT_THAT(engine_.call().tokens, testing::ElementsAre(1, 2, 3));
  for (uint64_t i = 0; i < 20; ++i) sink->Send(Frame(i, i * 1000));
  sink->Finish(absl::OkStatus());
  sink.reset();
  for (uint64_t i = 0; i < 20; ++i) {
    const runtime::KvFrame frame = AwaitFrame(*transfer);
    ASSERT_EQ(frame.sequence, i);
    EXPECT_EQ(frame.payload, std::string(i * 1000, 'k'));
    EXPECT_EQ(std::get<runtime::KvBody>(frame.body).token_begin, static_cast<int64_t>(i));
  }
  EXPECT_TRUE(AwaitEnd(*transfer).ok());
  EXPECT_GT(reader_woken_, 0);
}

// The frames of a prompt in wire form `hidden`, in their order.
TEST_P(TransportContractTest, EveryKindOfFrameArrives) {
  const auto transfer = Open();
  auto sink = engine_.AwaitSink();
  runtime::PlanBody plan;
  plan.plan = {3, 2};
  sink->Send({0, runtime::KvBody{0, 2, 0, 3}, "kv", 1});
  sink->Send({1, runtime::HiddenBody{2, {0, 1, 2}}, "hidden", 2});
  sink->Send({2, runtime::ScoresBody{3}, "scores", 3});
  sink->Send({3, plan, "", 4});
  sink->Send({4, runtime::SealedBody{3, 4, 5}, "", 5});
  sink->Finish(absl::OkStatus());
  sink.reset();
  EXPECT_EQ(std::get<runtime::KvBody>(AwaitFrame(*transfer).body).layer_end, 2);
  EXPECT_THAT(std::get<runtime::HiddenBody>(AwaitFrame(*transfer).body).positions,
              testing::ElementsAre(0, 1, 2));
  const runtime::KvFrame scores = AwaitFrame(*transfer);
  EXPECT_EQ(std::get<runtime::ScoresBody>(scores.body).tokens, 3);
  EXPECT_EQ(scores.payload, "scores");
  EXPECT_EQ(std::get<runtime::PlanBody>(AwaitFrame(*transfer).body).plan.tail_begin, 2);
  EXPECT_EQ(std::get<runtime::SealedBody>(AwaitFrame(*transfer).body).digest, 5u);
  EXPECT_TRUE(AwaitEnd(*transfer).ok());
}

TEST_P(TransportContractTest, SlowReaderHoldsTheWriterWithinBounds) {
  const auto transfer = Open();
  auto sink = engine_.AwaitSink();
  std::atomic<int> writer_woken = 0;
  sink->SetWakeup([&] { ++writer_woken; });
  constexpr size_t kFrame = 256 << 10;
  // Nobody reads: after the buffers of both ends and of the connection the writer finds no room for good.
  uint64_t sent = 0;
  for (int quiet = 0; quiet < 100;) {
    if (sink->HasRoom()) {
      sink->Send(Frame(sent++, kFrame));
      quiet = 0;
    } else {
      absl::SleepFor(absl::Milliseconds(2));
      ++quiet;
    }
    ASSERT_LT(sent * kFrame, size_t{64} << 20) << "no bound";
  }
  const uint64_t before = sent;
  for (uint64_t i = 0; i < before; ++i) ASSERT_EQ(AwaitFrame(*transfer).sequence, i);
  EXPECT_TRUE(Eventually([&] { return sink->HasRoom() && writer_woken > 0; }));
  sink->Send(Frame(sent, 1));
  sink->Finish(absl::OkStatus());
  sink.reset();
  EXPECT_EQ(AwaitFrame(*transfer).sequence, sent);
  EXPECT_TRUE(AwaitEnd(*transfer).ok());
}

TEST_P(TransportContractTest, CancelReachesTheWriterAndTheCallStillEnds) {
  const auto transfer = Open();
  auto sink = engine_.AwaitSink();
  std::atomic<int> writer_woken = 0;
  sink->SetWakeup([&] { ++writer_woken; });
  sink->Send(Frame(0, 100));
  AwaitFrame(*transfer);
  transfer->Cancel();
  EXPECT_TRUE(Eventually([&] { return sink->Cancelled() && writer_woken > 0; }));
  EXPECT_TRUE(sink->HasRoom()) << "a cancelled transfer never blocks the engine";
  sink->Send(Frame(1, 100));
  sink->Finish(absl::CancelledError("cancelled"));
  sink.reset();
  EXPECT_EQ(AwaitEnd(*transfer).code(), absl::StatusCode::kCancelled);
}

TEST_P(TransportContractTest, DestroyingTheTransferCancelsIt) {
  auto transfer = Open();
  auto sink = engine_.AwaitSink();
  for (uint64_t i = 0; i < 16; ++i) sink->Send(Frame(i, 256 << 10));
  EXPECT_TRUE(Eventually([&] { return transfer->TryNext().has_value(); }));
  transfer.reset();
  EXPECT_TRUE(Eventually([&] { return sink->Cancelled(); }));
  sink->Finish(absl::CancelledError("cancelled"));
}

TEST_P(TransportContractTest, RefusalKeepsItsReason) {
  engine_.Refuse(
      base::Error(absl::StatusCode::kFailedPrecondition, "PEER_MODEL", "another model", {{"peer", "x"}}));
  const auto transfer = Open();
  const absl::Status end = AwaitEnd(*transfer);
  EXPECT_EQ(end.code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(base::GetErrorDetail(end).has_value());
  EXPECT_EQ(base::GetErrorDetail(end)->reason, "PEER_MODEL");
}

TEST_P(TransportContractTest, FailureComesAfterTheFramesBeforeIt) {
  const auto transfer = Open();
  auto sink = engine_.AwaitSink();
  sink->Send(Frame(0, 10));
  sink->Finish(base::Error(absl::StatusCode::kUnavailable, "SHUTDOWN", "stopped"));
  sink.reset();
  EXPECT_EQ(AwaitFrame(*transfer).sequence, 0u);
  EXPECT_EQ(AwaitEnd(*transfer).code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportContractTest, DeadlineTravelsAndCancels) {
  if (!GetParam()->capabilities.crosses_processes) GTEST_SKIP() << "the engines watch it themselves";
  const auto transfer = Open(absl::Now() + absl::Milliseconds(500));
  auto sink = engine_.AwaitSink();
  EXPECT_LT(engine_.call().deadline, absl::Now() + absl::Seconds(1));
  EXPECT_TRUE(Eventually([&] { return sink->Cancelled(); }));
  sink->Finish(absl::CancelledError("cancelled"));
  EXPECT_EQ(AwaitEnd(*transfer).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(TransportContractTest, LostPeerIsUnavailable) {
  if (!GetParam()->capabilities.crosses_processes) GTEST_SKIP() << "there is no peer to lose";
  const auto transfer = Open();
  auto sink = engine_.AwaitSink();
  // On a thread of its own: a server is down only when its calls have ended, and this one ends below.
  std::thread shutdown([this] { server_->Shutdown(absl::Now()); });
  EXPECT_TRUE(Eventually([&] { return sink->Cancelled(); }));
  sink->Finish(absl::CancelledError("cancelled"));
  sink.reset();
  shutdown.join();
  EXPECT_EQ(AwaitEnd(*transfer).code(), absl::StatusCode::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(All, TransportContractTest,
                         testing::ValuesIn(AllTransports().begin(), AllTransports().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace ridgefill::transport
