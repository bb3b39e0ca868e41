// The small pure parts of the engines.
#include <gtest/gtest.h>

#include <cmath>

#include <string>

#include "engine/base/rng.h"
#include "engine/base/status.h"
#include "engine/runtime/decision.h"
#include "engine/runtime/first_token_times.h"
#include "engine/runtime/kv_frame.h"

namespace ridgefill::runtime {
namespace {

std::string ReasonOf(const absl::Status& status) {
  if (status.ok()) return "OK";
  const auto detail = base::GetErrorDetail(status);
  return detail ? detail->reason : status.ToString();
}

TEST(HelloTest, EveryDifferenceIsNamedWithBothValues) {
  Hello mine;
  mine.model = {"name", "llama", "30 layers", "tok-a", "weights-a"};
  mine.maps = {{16, "maps-b"}, {18, "maps-a"}};
  mine.cache_layout = "bf16[64, 3, 64] x 30";
  EXPECT_TRUE(CheckHello(mine, mine, 18).ok());

  const auto differs = [&](auto change, int split = 18) {
    Hello peer = mine;
    change(peer);
    return CheckHello(mine, peer, split);
  };
  EXPECT_TRUE(differs([](Hello& h) { h.model.name = "other"; }).ok()) << "names are for people";
  EXPECT_TRUE(differs([](Hello& h) { h.protocol_minor = 7; }).ok());
  EXPECT_EQ(ReasonOf(differs([](Hello& h) { h.protocol_major = 2; })), "PEER_PROTOCOL")
      << "does not say which split its maps are of";
  EXPECT_EQ(ReasonOf(differs([](Hello& h) { h.model.arch = "qwen2"; })), "PEER_MODEL");
  EXPECT_EQ(ReasonOf(differs([](Hello& h) { h.model.dimensions = "24 layers"; })), "PEER_MODEL");
  EXPECT_EQ(ReasonOf(differs([](Hello& h) { h.model.weights_digest = "w"; })), "PEER_MODEL");
  EXPECT_EQ(ReasonOf(differs([](Hello& h) { h.model.tokenizer_digest = "t"; })), "PEER_TOKENIZER");
  EXPECT_EQ(ReasonOf(differs([](Hello& h) { h.cache_layout = "l"; })), "PEER_LAYOUT");
  EXPECT_TRUE(differs([](Hello& h) { h.maps = {{18, "m"}}; }, /*split=*/0).ok());
  EXPECT_TRUE(differs([](Hello& h) {
                h.maps = {{18, "maps-a"}, {20, "m"}};
              }).ok())
      << "that split alone counts";
  EXPECT_EQ(ReasonOf(differs([](Hello& h) { h.maps[1].digest = "m"; })), "PEER_MAPS");
  const absl::Status maps = differs([](Hello& h) { h.maps.pop_back(); });
  EXPECT_EQ(maps.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(maps), "PEER_MAPS");
  EXPECT_EQ(maps.message(), "the two workers differ in their map set of split 18: here maps-a, peer none");
}

TEST(DecisionTest, RefusesWhatMeansNothing) {
  ridge::FillDecision ok;
  ok.mode = ridge::Mode::kSpeed;
  ok.split = 2;
  ok.tail = 16;
  EXPECT_TRUE(CheckDecision(ok, 4).ok());
  const auto with = [&](auto change) {
    ridge::FillDecision decision = ok;
    change(decision);
    return ReasonOf(CheckDecision(decision, 4));
  };
  using ridge::FillDecision;
  EXPECT_EQ(with([](FillDecision& d) { d.mode = ridge::Mode::kAuto; }), "DECISION_MODE");
  const auto quality = [](FillDecision& d) { d.mode = ridge::Mode::kQuality, d.share = 0.05f; };
  EXPECT_EQ(with(quality), "OK");
  EXPECT_EQ(with([&](FillDecision& d) { quality(d), d.share = -0.1f; }), "DECISION_SHARE");
  EXPECT_EQ(with([&](FillDecision& d) { quality(d), d.share = 1.1f; }), "DECISION_SHARE");
  EXPECT_EQ(with([&](FillDecision& d) { quality(d), d.share = std::nanf(""); }), "DECISION_SHARE");
  EXPECT_EQ(with([&](FillDecision& d) { quality(d), d.tail = 0; }), "DECISION_TAIL");
  EXPECT_EQ(with([&](FillDecision& d) { quality(d), d.local = true; }), "DECISION_LOCAL");
  const auto hidden = [](FillDecision& d) { d.wire_form = ridge::WireForm::kHidden; };
  const auto probe = [&](FillDecision& d) { quality(d), d.selector = ridge::Selector::kProbe; };
  EXPECT_EQ(with(hidden), "OK");
  EXPECT_EQ(with([&](FillDecision& d) { quality(d), hidden(d); }), "OK");
  EXPECT_EQ(with([&](FillDecision& d) { probe(d), hidden(d); }), "OK");
  EXPECT_EQ(with(probe), "DECISION_WIRE_FORM") << "the rows that it chooses must be there";
  EXPECT_EQ(with([&](FillDecision& d) { hidden(d), d.mode = ridge::Mode::kExact; }), "DECISION_WIRE_FORM");
  EXPECT_EQ(with([](FillDecision& d) { d.local = true; }), "DECISION_LOCAL");
  EXPECT_EQ(with([](FillDecision& d) { d.late_pass = ridge::LatePassAt::kPrefill; }), "LATE_PASS_ON_PREFILL");
  EXPECT_EQ(with([](FillDecision& d) { d.split = 0; }), "DECISION_SPLIT");
  EXPECT_EQ(with([](FillDecision& d) { d.split = 4; }), "DECISION_SPLIT");
  EXPECT_EQ(with([](FillDecision& d) { d.tail = 0; }), "DECISION_TAIL");
  const auto exact = [](FillDecision& d) { d.mode = ridge::Mode::kExact, d.tail = 0, d.split = 0; };
  EXPECT_EQ(with([&](FillDecision& d) { exact(d), d.local = true; }), "OK");
  EXPECT_EQ(with([&](FillDecision& d) { exact(d), d.late_pass = ridge::LatePassAt::kPrefill; }), "OK");
  EXPECT_EQ(with([&](FillDecision& d) { exact(d); }), "DECISION_SPLIT");
}

TEST(FirstTokenTimesTest, PartsAddUpWhateverThePeerClaims) {
  base::Rng rng(5);
  const auto random = [&] { return absl::Nanoseconds(static_cast<int64_t>(rng.NextBelow(1000000000))); };
  for (int i = 0; i < 1000; ++i) {
    RequestTimes at;
    at.submitted = random();
    at.admitted = at.submitted + random();
    at.received = at.admitted + random();
    at.finished = at.received + random();
    at.first_token = at.finished + random();
    const PeerTimes peer{random() - absl::Milliseconds(300), random() * 2};
    for (const FirstTokenTimes& t : {SplitTimes(at, peer), SplitLocalTimes(at)}) {
      for (absl::Duration part : {t.decode_queue, t.prefill_queue, t.prefill_compute, t.transfer_exposed,
                                  t.late_pass, t.first_step}) {
        ASSERT_GE(part, absl::ZeroDuration());
      }
      ASSERT_EQ(t.decode_queue + t.prefill_queue + t.prefill_compute + t.transfer_exposed + t.late_pass +
                    t.first_step,
                at.first_token - at.submitted);
    }
  }
}

TEST(FirstTokenTimesTest, TransferIsWhatThePeerDoesNotExplain) {
  const auto ms = [](int n) { return absl::Milliseconds(n); };
  const RequestTimes at{ms(0), ms(10), ms(110), ms(150), ms(153)};
  const FirstTokenTimes t = SplitTimes(at, {ms(20), ms(65)});
  EXPECT_EQ(t.decode_queue, ms(10));
  EXPECT_EQ(t.prefill_queue, ms(20));
  EXPECT_EQ(t.prefill_compute, ms(65));
  EXPECT_EQ(t.transfer_exposed, ms(15));
  EXPECT_EQ(t.late_pass, ms(40));
  EXPECT_EQ(t.first_step, ms(3));
}

}  // namespace
}  // namespace ridgefill::runtime
