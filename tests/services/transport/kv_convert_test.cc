#include "services/transport/kv_convert.h"

#include <gmock/gmock.h>

#include <limits>

#include "engine/base/status.h"
#include "services/transport/transport.h"

namespace ridgefill::transport {
namespace {

constexpr runtime::TransferId kId = {0x0123456789abcdef, 0xfedcba9876543210};

runtime::KvFrame Through(runtime::KvFrame frame) {
  v1::PrefillResponse wire, parsed;
  ToProto(kId, std::move(frame), wire);
  EXPECT_TRUE(parsed.ParseFromString(wire.SerializeAsString()));
  auto again = FromProto(kId, parsed);
  EXPECT_TRUE(again.ok()) << again.status();
  return again.ok() ? *std::move(again) : runtime::KvFrame{};
}

TEST(KvConvertTest, FramesSurvive) {
  const auto kv = Through({7, runtime::KvBody{2, 5, 64, 32}, std::string("a\0b", 3), 0xdeadbeef});
  EXPECT_EQ(kv.sequence, 7u);
  EXPECT_EQ(kv.crc32c, 0xdeadbeef);
  EXPECT_EQ(kv.payload, std::string("a\0b", 3));
  const auto& body = std::get<runtime::KvBody>(kv.body);
  EXPECT_EQ(body.layer_begin, 2);
  EXPECT_EQ(body.layer_end, 5);
  EXPECT_EQ(body.token_begin, 64);
  EXPECT_EQ(body.token_count, 32);

  const auto hidden = Through({8, runtime::HiddenBody{18, {0, 5, 6}}, "x", 1});
  EXPECT_THAT(std::get<runtime::HiddenBody>(hidden.body).positions, testing::ElementsAre(0, 5, 6));

  const auto scores = Through({8, runtime::ScoresBody{100}, "y", 1});
  EXPECT_EQ(std::get<runtime::ScoresBody>(scores.body).tokens, 100);
  EXPECT_EQ(scores.payload, "y");

  runtime::PlanBody plan;
  plan.plan = {100, 80, {0, 3}, {9}};
  plan.batch_invariant = false;
  plan.queue_time = absl::Milliseconds(3);
  plan.compute_time = absl::Seconds(2);
  const auto planned = std::get<runtime::PlanBody>(Through({9, plan, "", 0}).body);
  EXPECT_EQ(planned.plan.tokens, 100);
  EXPECT_EQ(planned.plan.tail_begin, 80);
  EXPECT_THAT(planned.plan.outliers, testing::ElementsAre(0, 3));
  EXPECT_THAT(planned.plan.selected, testing::ElementsAre(9));
  EXPECT_FALSE(planned.batch_invariant);
  EXPECT_EQ(planned.queue_time, absl::Milliseconds(3));
  EXPECT_EQ(planned.compute_time, absl::Seconds(2));

  const auto sealed =
      std::get<runtime::SealedBody>(Through({10, runtime::SealedBody{100, 10, 42}, "", 0}).body);
  EXPECT_EQ(sealed.tokens, 100);
  EXPECT_EQ(sealed.frames, 10u);
  EXPECT_EQ(sealed.digest, 42u);
}

TEST(KvConvertTest, FramesOfAnotherTransferAndEmptyOnesAreLoss) {
  v1::PrefillResponse wire;
  ToProto(kId, {0, runtime::KvBody{0, 1, 0, 1}, "", 0}, wire);
  EXPECT_EQ(FromProto({kId.high, kId.low + 1}, wire).status().code(), absl::StatusCode::kDataLoss);
  wire.clear_body();
  const auto empty = FromProto(kId, wire);
  EXPECT_EQ(base::GetErrorDetail(empty.status())->reason, "FRAME_BODY");
}

TEST(KvConvertTest, NonsensicalTimesCountAsNone) {
  for (const double seconds : {-1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    v1::PrefillResponse wire;
    ToProto(kId, {0, runtime::PlanBody{}, "", 0}, wire);
    wire.mutable_plan()->set_queue_seconds(seconds);
    const auto frame = FromProto(kId, wire);
    ASSERT_TRUE(frame.ok());
    EXPECT_EQ(std::get<runtime::PlanBody>(frame->body).queue_time, absl::ZeroDuration());
  }
}

TEST(KvConvertTest, CallsSurvive) {
  runtime::PrefillCall call;
  call.id = kId;
  call.hello.cache_layout = "layout";
  call.tokens = {5, 4, 3};
  call.decision.mode = ridge::Mode::kSpeed;
  call.decision.split = 2;
  call.decision.wire_form = ridge::WireForm::kHidden;
  const auto again = FromProto(ToProto(call));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->id, kId);
  EXPECT_EQ(again->hello.cache_layout, "layout");
  EXPECT_EQ(again->tokens, call.tokens);
  EXPECT_EQ(again->decision.split, 2);
  EXPECT_EQ(again->decision.wire_form, ridge::WireForm::kHidden);
}

TEST(TransportTest, AreFoundByName) {
  ASSERT_TRUE(FindTransport("grpc").ok());
  EXPECT_TRUE((*FindTransport("grpc"))->capabilities.crosses_machines);
  EXPECT_FALSE((*FindTransport("local"))->capabilities.crosses_processes);
  EXPECT_THAT(std::string(FindTransport("pigeon").status().message()), testing::HasSubstr("grpc, local"));
  EXPECT_FALSE((*FindTransport("local"))->connect({}).ok()) << "needs an engine";
}

}  // namespace
}  // namespace ridgefill::transport
