// SplitPolicy and Placement.
#include <gmock/gmock.h>

#include <cmath>

#include "engine/base/status.h"
#include "services/router/placement.h"
#include "services/router/split_policy.h"

namespace ridgefill::router {
namespace {

using ridge::LatePassAt;
using ridge::Mode;

// SmolLM2's figures.
const PrefillFacts kWithMaps = {30, 30, 18, 512, 64, 512};
const PrefillFacts kWithoutMaps = {30, 30, 0, 0, 0, 0};
const PrefillFacts kLowerOnly = {30, 18, 18, 512, 64, 512};

ridge::FillDecision Must(const PolicyOptions& options, const PromptFacts& prompt,
                         const PrefillFacts& prefill) {
  auto decision = Decide(options, prompt, prefill);
  EXPECT_TRUE(decision.ok()) << decision.status();
  return decision.value_or(ridge::FillDecision{});
}

std::string ReasonOf(const absl::Status& status) {
  const auto detail = base::GetErrorDetail(status);
  return detail.has_value() ? detail->reason : "";
}

TEST(SplitPolicyTest, AutoGoesByLength) {
  const auto long_one = Must({}, {Mode::kAuto, 2048, 2048}, kWithMaps);
  EXPECT_EQ(long_one.mode, Mode::kSpeed);
  EXPECT_EQ(long_one.split, 18);
  EXPECT_EQ(long_one.tail, 512);
  EXPECT_EQ(long_one.reason, "LONG_PROMPT");
  EXPECT_EQ(long_one.late_pass, LatePassAt::kDecode);
  const auto medium = Must({}, {Mode::kAuto, 2047, 2047}, kWithMaps);
  EXPECT_EQ(medium.mode, Mode::kExact);
  EXPECT_EQ(medium.reason, "BELOW_AUTO_MIN");
  EXPECT_EQ(Must({}, {Mode::kAuto, 1023, 1023}, kWithMaps).reason, "SHORT_PROMPT");
  EXPECT_EQ(Must({}, {Mode::kAuto, 8000, 8000}, kWithoutMaps).reason, "NO_MAPS");
}

TEST(SplitPolicyTest, AskedModesAreNeverDowngradedSilently) {
  EXPECT_EQ(Must({}, {Mode::kExact, 8000, 8000}, kWithMaps).reason, "REQUESTED");
  EXPECT_EQ(Must({}, {Mode::kExact, 8000, 8000}, kWithMaps).mode, Mode::kExact);
  EXPECT_EQ(Must({}, {Mode::kSpeed, 1024, 1024}, kWithMaps).mode, Mode::kSpeed);
  const auto short_one = Must({}, {Mode::kSpeed, 1023, 1023}, kWithMaps);
  EXPECT_EQ(short_one.mode, Mode::kExact);
  EXPECT_EQ(short_one.reason, "SHORT_PROMPT");
  const auto no_maps = Decide({}, {Mode::kSpeed, 8000, 8000}, kWithoutMaps);
  EXPECT_EQ(no_maps.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(no_maps.status()), "NO_MAPS");
  const auto short_quality = Must({}, {Mode::kQuality, 1023, 1023}, kWithMaps);
  EXPECT_EQ(short_quality.mode, Mode::kExact);
  EXPECT_EQ(short_quality.reason, "SHORT_PROMPT");
  EXPECT_EQ(ReasonOf(Decide({}, {Mode::kQuality, 8000, 8000}, kWithoutMaps).status()), "NO_MAPS");
}

TEST(SplitPolicyTest, QualitySelectsTheShareThatWasAskedForWithinTheOperatorsLimit) {
  const auto plain = Must({}, {Mode::kQuality, 8000, 8000}, kWithMaps);
  EXPECT_EQ(plain.mode, Mode::kQuality);
  EXPECT_EQ(plain.split, 18);
  EXPECT_EQ(plain.tail, 512);
  EXPECT_EQ(plain.share, 0.25f);
  EXPECT_EQ(plain.selector, ridge::Selector::kAttention);
  EXPECT_EQ(plain.reason, "REQUESTED");
  EXPECT_EQ(plain.late_pass, LatePassAt::kDecode);
  PolicyOptions options;
  options.share = 0.02f;
  options.max_share = 0.1f;
  PromptFacts prompt{Mode::kQuality, 8000, 8000};
  EXPECT_EQ(Must(options, prompt, kWithMaps).share, 0.02f);
  prompt.share = 0.1f;
  prompt.selector = ridge::Selector::kRarity;
  EXPECT_EQ(Must(options, prompt, kWithMaps).share, 0.1f);
  EXPECT_EQ(Must(options, prompt, kWithMaps).selector, ridge::Selector::kRarity);
  for (float share : {0.11f, -0.01f, std::nanf("")}) {
    prompt.share = share;
    EXPECT_EQ(ReasonOf(Decide(options, prompt, kWithMaps).status()), "SHARE_RANGE") << share;
  }
  prompt.share.reset();
  prompt.prompt_logprobs = true;
  EXPECT_EQ(ReasonOf(Decide(options, prompt, kWithMaps).status()), "PROMPT_LOGPROBS_EXACT_ONLY");
  options.forbid_filled = true;
  EXPECT_EQ(ReasonOf(Decide(options, prompt, kWithMaps).status()), "MODE_FORBIDDEN");
  EXPECT_EQ(Must({}, {Mode::kSpeed, 8000, 8000}, kWithMaps).share, 0.0f);
}

TEST(SplitPolicyTest, AProbeAndTheOperatorTakeWireFormHidden) {
  using ridge::WireForm;
  PolicyOptions options;
  PromptFacts probe{Mode::kQuality, 8000, 8000};
  probe.selector = ridge::Selector::kProbe;
  EXPECT_EQ(Must(options, {Mode::kQuality, 8000, 8000}, kWithMaps).wire_form, WireForm::kKv);
  EXPECT_EQ(Must(options, {Mode::kSpeed, 8000, 8000}, kWithMaps).wire_form, WireForm::kKv);
  EXPECT_EQ(Must(options, probe, kWithMaps).wire_form, WireForm::kHidden);
  options.wire_form = WireForm::kHidden;
  EXPECT_EQ(Must(options, {Mode::kQuality, 8000, 8000}, kWithMaps).wire_form, WireForm::kHidden);
  EXPECT_EQ(Must(options, {Mode::kAuto, 8000, 8000}, kWithMaps).wire_form, WireForm::kHidden);
  EXPECT_EQ(Must(options, {Mode::kExact, 8000, 8000}, kWithMaps).wire_form, WireForm::kKv);
  probe.tokens = probe.uncached = 600;
  EXPECT_EQ(Must(options, probe, kWithMaps).wire_form, WireForm::kKv) << "a short prompt runs EXACT";
}

TEST(SplitPolicyTest, ADecodeWorkerWithoutMapsTakesWireFormKv) {
  PolicyOptions options;
  options.wire_form = ridge::WireForm::kHidden;
  const auto speed = Decide(options, {Mode::kAuto, 8000, 8000}, kWithMaps, {.has_maps = false});
  ASSERT_TRUE(speed.ok());
  EXPECT_EQ(speed->mode, Mode::kSpeed);
  EXPECT_EQ(speed->wire_form, ridge::WireForm::kKv);
  PromptFacts probe{Mode::kQuality, 8000, 8000};
  EXPECT_TRUE(Decide(options, probe, kWithMaps, {.has_maps = false}).ok());
  probe.selector = ridge::Selector::kProbe;
  const absl::Status refused = Decide(options, probe, kWithMaps, {.has_maps = false}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(refused), "NO_MAPS");
  probe.tokens = probe.uncached = 600;
  EXPECT_TRUE(Decide(options, probe, kWithMaps, {.has_maps = false}).ok()) << "it runs EXACT";
}

TEST(SplitPolicyTest, TheOperatorMayForbidFillingAndSetTheTail) {
  PolicyOptions options;
  options.forbid_filled = true;
  EXPECT_EQ(Must(options, {Mode::kAuto, 8000, 8000}, kWithMaps).reason, "OPERATOR");
  EXPECT_EQ(ReasonOf(Decide(options, {Mode::kSpeed, 8000, 8000}, kWithMaps).status()), "MODE_FORBIDDEN");
  options.forbid_filled = false;
  options.tail = 1024;
  EXPECT_EQ(Must(options, {Mode::kSpeed, 8000, 8000}, kWithMaps).tail, 1024);
  options.tail = 8;
  EXPECT_EQ(Must(options, {Mode::kSpeed, 8000, 8000}, kWithMaps).tail, 64) << "the map set's least";
}

TEST(SplitPolicyTest, ExactRunsWhereItCan) {
  EXPECT_EQ(Must({}, {Mode::kExact, 8000, 8000}, kWithMaps).late_pass, LatePassAt::kPrefill);
  const auto lower = Must({}, {Mode::kExact, 8000, 8000}, kLowerOnly);
  EXPECT_EQ(lower.late_pass, LatePassAt::kDecode);
  EXPECT_EQ(lower.split, 18);
  const auto local = Must({}, {Mode::kExact, 256, 256}, kWithMaps);
  EXPECT_TRUE(local.local);
  EXPECT_EQ(local.reason, "LOCAL");
  EXPECT_FALSE(Must({}, {Mode::kExact, 257, 257}, kWithMaps).local);
  EXPECT_TRUE(Must({}, {Mode::kExact, 8000, 100}, kWithMaps).local) << "by uncached length";
  const auto alone = Must({}, {Mode::kExact, 8000, 8000}, PrefillFacts{});
  EXPECT_TRUE(alone.local);
  EXPECT_EQ(alone.reason, "NO_PREFILL_WORKERS");
}

TEST(SplitPolicyTest, PromptLogprobsRunExactOnDecode) {
  const auto decision = Must({}, {Mode::kAuto, 8000, 8000, true}, kWithMaps);
  EXPECT_EQ(decision.mode, Mode::kExact);
  EXPECT_TRUE(decision.local);
  EXPECT_EQ(decision.reason, "PROMPT_LOGPROBS");
  EXPECT_EQ(Decide({}, {Mode::kSpeed, 8000, 8000, true}, kWithMaps).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SplitPolicyTest, WhoWouldBeFilledWantsMaps) {
  const auto wants = [](Mode mode, int64_t tokens, bool prompt_logprobs = false, bool forbidden = false) {
    PolicyOptions options;
    options.forbid_filled = forbidden;
    return WantsMaps(options, {mode, tokens, tokens, prompt_logprobs});
  };
  EXPECT_EQ(wants(Mode::kSpeed, 10), MapsWanted::kRequired);
  EXPECT_EQ(wants(Mode::kQuality, 10), MapsWanted::kRequired);
  EXPECT_EQ(wants(Mode::kAuto, 2048), MapsWanted::kPreferred);
  EXPECT_EQ(wants(Mode::kAuto, 2047), MapsWanted::kNo);
  EXPECT_EQ(wants(Mode::kAuto, 2048, true), MapsWanted::kNo);
  EXPECT_EQ(wants(Mode::kExact, 8000), MapsWanted::kNo);
  EXPECT_EQ(wants(Mode::kSpeed, 8000, false, true), MapsWanted::kNo);
}

WorkerReport Serving(int64_t load) {
  WorkerReport report;
  report.serving = true;
  report.load = load;
  return report;
}

TEST(PlacementTest, NobodyServingIsUnavailable) {
  Placement placement("decode", {"a:1", "b:1"});
  const auto none = placement.Pick({});
  EXPECT_EQ(none.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(none.status()), "NO_WORKER");
}

TEST(PlacementTest, LeastLoadWinsAndLeasesCount) {
  Placement placement("decode", {"a:1", "b:1"});
  placement.Update(0, Serving(2));
  placement.Update(1, Serving(0));
  auto first = *placement.Pick({});
  auto second = *placement.Pick({});
  EXPECT_EQ(first.index(), 1);
  EXPECT_EQ(second.index(), 1);
  EXPECT_EQ(placement.in_flight(1), 2);
  EXPECT_EQ(placement.Pick({})->index(), 0) << "equal load: the other one's turn";
  { auto moved = std::move(second); }
  EXPECT_EQ(placement.in_flight(1), 1);
}

TEST(PlacementTest, OwnRequestsInAReportCountOnce) {
  Placement placement("decode", {"a:1", "b:1"});
  placement.Update(0, Serving(0));
  placement.Update(1, Serving(1));
  {
    const auto own = *placement.Pick({});
    ASSERT_EQ(own.index(), 0);
    placement.Update(0, Serving(1));  // that very request
    EXPECT_EQ(placement.Pick({})->index(), 1) << "1 against 1, and its turn";
  }
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(placement.Pick({})->index(), 0) << "idle since, though the report is old";
}

TEST(PlacementTest, EqualWorkersTakeTurns) {
  Placement placement("prefill", {"a:1", "b:1", "c:1"});
  for (int i = 0; i < 3; ++i) placement.Update(i, Serving(0));
  std::vector<int> order;
  order.reserve(6);
  for (int i = 0; i < 6; ++i) order.push_back(placement.Pick({})->index());
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(PlacementTest, TheUnhealthyGetNothingUntilTheyRecover) {
  Placement placement("decode", {"a:1", "b:1"});
  placement.Update(0, Serving(0));
  placement.Update(1, Serving(5));
  placement.MarkDown(0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(placement.Pick({})->index(), 1);
  placement.Update(0, {});
  EXPECT_EQ(placement.Pick({})->index(), 1);
  placement.Update(0, Serving(0));
  EXPECT_EQ(placement.Pick({})->index(), 0);
}

TEST(PlacementTest, MapsCountBeforeLoadWhenTheyAreWanted) {
  Placement placement("prefill", {"a:1", "b:1", "c:1"});
  EXPECT_FALSE(placement.Pick({}, MapsWanted::kRequired).ok());
  placement.Update(0, Serving(0));
  EXPECT_EQ(placement.Pick({}, MapsWanted::kRequired)->index(), 0) << "for Decide to say NO_MAPS";
  EXPECT_EQ(placement.Example()->prefill.split, 0);
  WorkerReport with_maps = Serving(7);
  with_maps.prefill = kWithMaps;
  placement.Update(1, with_maps);
  placement.Update(2, Serving(0));
  EXPECT_NE(placement.Pick({})->index(), 1);
  EXPECT_EQ(placement.Pick({}, MapsWanted::kPreferred)->index(), 1);
  EXPECT_EQ(placement.Pick({}, MapsWanted::kRequired)->index(), 1);
  EXPECT_NE(placement.Pick({1}, MapsWanted::kPreferred)->index(), 1) << "EXACT elsewhere";
  EXPECT_EQ(placement.Pick({1}, MapsWanted::kRequired)->index(), 1) << "nobody else can";
  EXPECT_EQ(placement.Example()->prefill.split, 18) << "SPEED is on offer";
}

TEST(PlacementTest, AvoidsWhoFailedUnlessThereIsNoOther) {
  Placement placement("decode", {"a:1", "b:1"});
  placement.Update(0, Serving(0));
  placement.Update(1, Serving(9));
  EXPECT_EQ(placement.Pick({0})->index(), 1);
  EXPECT_EQ(placement.Pick({0, 1})->index(), 0);
}

}  // namespace
}  // namespace ridgefill::router
