// SplitPolicy and Placement.
#include <gmock/gmock.h>

#include <cmath>

#include "engine/base/status.h"
#include "engine/ridge/selection.h"
#include "services/router/placement.h"
#include "services/router/split_policy.h"

namespace ridgefill::router {
namespace {

using ridge::LatePassAt;
using ridge::Mode;

// SmolLM2's figures.
const std::vector<MapFacts> kMaps = {{18, 512, 64, 512, "d"}}, kNoMaps = {};
const PrefillFacts kWithMaps = {30, 30, kMaps};
const PrefillFacts kWithoutMaps = {30, 30, kNoMaps};
const PrefillFacts kLowerOnly = {30, 18, kMaps};

ridge::FillDecision Must(const PolicyOptions& options, const PromptFacts& prompt,
                         const PrefillFacts& prefill) {
  auto decision = Decide(options, prompt, prefill, kMaps);
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
  const auto no_maps = Decide({}, {Mode::kSpeed, 8000, 8000}, kWithoutMaps, kMaps);
  EXPECT_EQ(no_maps.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(no_maps.status()), "NO_MAPS");
  const auto short_quality = Must({}, {Mode::kQuality, 1023, 1023}, kWithMaps);
  EXPECT_EQ(short_quality.mode, Mode::kExact);
  EXPECT_EQ(short_quality.reason, "SHORT_PROMPT");
  EXPECT_EQ(ReasonOf(Decide({}, {Mode::kQuality, 8000, 8000}, kWithoutMaps, kMaps).status()), "NO_MAPS");
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
    EXPECT_EQ(ReasonOf(Decide(options, prompt, kWithMaps, kMaps).status()), "SHARE_RANGE") << share;
  }
  prompt.share.reset();
  prompt.prompt_logprobs = true;
  EXPECT_EQ(ReasonOf(Decide(options, prompt, kWithMaps, kMaps).status()), "PROMPT_LOGPROBS_EXACT_ONLY");
  options.forbid_filled = true;
  EXPECT_EQ(ReasonOf(Decide(options, prompt, kWithMaps, kMaps).status()), "MODE_FORBIDDEN");
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
  const auto speed = Decide(options, {Mode::kAuto, 8000, 8000}, kWithMaps, kNoMaps);
  ASSERT_TRUE(speed.ok());
  EXPECT_EQ(speed->mode, Mode::kSpeed);
  EXPECT_EQ(speed->wire_form, ridge::WireForm::kKv);
  PromptFacts probe{Mode::kQuality, 8000, 8000};
  EXPECT_TRUE(Decide(options, probe, kWithMaps, kNoMaps).ok());
  probe.selector = ridge::Selector::kProbe;
  const absl::Status refused = Decide(options, probe, kWithMaps, kNoMaps).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(refused), "NO_MAPS");
  probe.tokens = probe.uncached = 600;
  EXPECT_TRUE(Decide(options, probe, kWithMaps, kNoMaps).ok()) << "it runs EXACT";
}

// Whoever fills has the maps: the prefill worker of wire form `hidden` needs none.
TEST(SplitPolicyTest, InWireFormHiddenTheDecodeWorkersMapsWillDo) {
  const std::vector<MapFacts> other = {{20, 256, 64, 128, "o"}};
  PolicyOptions options;
  PromptFacts probe{Mode::kQuality, 8000, 8000};
  probe.selector = ridge::Selector::kProbe;
  const auto probed = Decide(options, probe, kWithoutMaps, other);
  ASSERT_TRUE(probed.ok()) << probed.status();
  EXPECT_EQ(probed->wire_form, ridge::WireForm::kHidden);
  EXPECT_EQ(probed->split, 20);
  EXPECT_EQ(probed->tail, 256);
  EXPECT_EQ(ReasonOf(Decide(options, {Mode::kSpeed, 8000, 8000}, kWithoutMaps, other).status()), "NO_MAPS")
      << "in wire form kv the prefill worker fills";
  options.wire_form = ridge::WireForm::kHidden;
  const auto speed = Decide(options, {Mode::kSpeed, 384, 384}, kWithoutMaps, other);
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_EQ(speed->mode, Mode::kSpeed);
  EXPECT_EQ(Decide(options, {Mode::kSpeed, 383, 383}, kWithoutMaps, other)->reason, "SHORT_PROMPT");
  EXPECT_EQ(Decide(options, {Mode::kAuto, 8000, 8000}, kWithoutMaps, other)->split, 20);
  const auto exact = Decide(options, {Mode::kExact, 8000, 8000}, kWithoutMaps, other);
  EXPECT_EQ(exact->late_pass, LatePassAt::kPrefill);
  EXPECT_EQ(Decide(options, {Mode::kSpeed, 8000, 8000}, kWithMaps, other)->split, 18) << "its own come first";
  EXPECT_EQ(ReasonOf(Decide(options, {Mode::kSpeed, 8000, 8000}, kWithoutMaps, kNoMaps).status()), "NO_MAPS");
}

TEST(SplitPolicyTest, WithoutAPrefillWorkerNothingIsFilled) {
  PolicyOptions hidden;
  hidden.wire_form = ridge::WireForm::kHidden;
  const auto automatic = Decide(hidden, {Mode::kAuto, 8000, 8000}, PrefillFacts{}, kMaps);
  ASSERT_TRUE(automatic.ok()) << automatic.status();
  EXPECT_EQ(automatic->mode, Mode::kExact);
  EXPECT_TRUE(automatic->local);
  EXPECT_EQ(automatic->reason, "NO_PREFILL_WORKERS");
  PromptFacts probe{Mode::kQuality, 8000, 8000};
  probe.selector = ridge::Selector::kProbe;
  EXPECT_EQ(ReasonOf(Decide({}, probe, PrefillFacts{}, kMaps).status()), "NO_MAPS");
  EXPECT_EQ(ReasonOf(Decide(hidden, {Mode::kSpeed, 8000, 8000}, PrefillFacts{}, kMaps).status()), "NO_MAPS");
}

TEST(SplitPolicyTest, AProbeWithoutRoomIsFilledByWhoHasMaps) {
  PromptFacts probe{Mode::kQuality, 8000, 8000};
  probe.selector = ridge::Selector::kProbe;
  probe.share = 0;
  EXPECT_EQ(Decide({}, probe, kWithoutMaps, kMaps)->wire_form, ridge::WireForm::kHidden);
  EXPECT_EQ(Decide({}, probe, kWithMaps, kMaps)->wire_form, ridge::WireForm::kKv);
}

// 5 % of 25 windows is more than one, 3 % is less: then nothing can be selected, and nobody looks for it.
TEST(SplitPolicyTest, WithoutRoomForAWindowNothingIsScored) {
  constexpr int64_t kShort = 512 + 25 * ridge::kSelectionWindow;  // of bulk, and the tail
  PolicyOptions options;
  options.share = 0.03f;
  PromptFacts probe{Mode::kQuality, kShort, kShort};
  probe.selector = ridge::Selector::kProbe;
  const auto none = Must(options, probe, kWithMaps);
  EXPECT_EQ(none.mode, Mode::kQuality);
  EXPECT_EQ(none.share, 0);
  EXPECT_EQ(none.wire_form, ridge::WireForm::kKv);
  EXPECT_FALSE(ridge::NeedsProbe(none));
  EXPECT_TRUE(Decide(options, probe, kWithMaps, kNoMaps).ok()) << "nobody probes";
  probe.selector = ridge::Selector::kAttention;
  EXPECT_FALSE(ridge::NeedsAttentionScores(Must(options, probe, kWithMaps)));
  probe.selector = ridge::Selector::kProbe;
  options.share = 0.05f;
  EXPECT_EQ(Must(options, probe, kWithMaps).share, 0.05f);
  EXPECT_EQ(Must(options, probe, kWithMaps).wire_form, ridge::WireForm::kHidden);
}

TEST(SplitPolicyTest, TheOperatorMayForbidFillingAndSetTheTail) {
  PolicyOptions options;
  options.forbid_filled = true;
  EXPECT_EQ(Must(options, {Mode::kAuto, 8000, 8000}, kWithMaps).reason, "OPERATOR");
  EXPECT_EQ(ReasonOf(Decide(options, {Mode::kSpeed, 8000, 8000}, kWithMaps, kMaps).status()),
            "MODE_FORBIDDEN");
  options.forbid_filled = false;
  options.tail = 1024;
  EXPECT_EQ(Must(options, {Mode::kSpeed, 8000, 8000}, kWithMaps).tail, 1024);
  options.tail = 8;
  EXPECT_EQ(Must(options, {Mode::kSpeed, 8000, 8000}, kWithMaps).tail, 64) << "the map set's least";
}

TEST(SplitPolicyTest, TheRequestOrTheOperatorChoosesTheSplit) {
  const PrefillFacts two = {30, 30, {kMaps[0], {16, 256, 64, 512, "s"}}};
  const auto split_of = [&](const PolicyOptions& options, Mode mode, int asked) {
    PromptFacts prompt{mode, 8000, 8000};
    prompt.split = asked;
    const auto decision = Decide(options, prompt, two, two.maps);
    EXPECT_TRUE(decision.ok()) << decision.status();
    return decision->split;
  };
  PolicyOptions options;
  for (Mode mode : {Mode::kAuto, Mode::kSpeed, Mode::kQuality}) {
    EXPECT_EQ(split_of(options, mode, 0), 18) << "the default one";
    EXPECT_EQ(split_of(options, mode, 16), 16);
  }
  options.quality_split = 16;
  EXPECT_EQ(split_of(options, Mode::kQuality, 0), 16);
  EXPECT_EQ(split_of(options, Mode::kQuality, 18), 18) << "the request comes first";
  EXPECT_EQ(split_of(options, Mode::kSpeed, 0), 18);
  options.quality_split = 0;
  options.speed_split = 16;
  EXPECT_EQ(split_of(options, Mode::kSpeed, 0), 16);
  EXPECT_EQ(split_of(options, Mode::kAuto, 0), 16);
  EXPECT_EQ(split_of(options, Mode::kQuality, 0), 18);
  EXPECT_EQ(Must(options, {Mode::kExact, 8000, 8000}, two).split, 18);
  options.quality_split = 16;
  const auto quality = Decide(options, {Mode::kQuality, 8000, 8000}, two, kNoMaps);
  EXPECT_EQ(quality->tail, 256) << "of that map set";
}

TEST(SplitPolicyTest, ASplitThatNobodyHasIsNamed) {
  PromptFacts prompt{Mode::kSpeed, 8000, 8000};
  prompt.split = 16;
  const absl::Status refused = Decide({}, prompt, kWithMaps, kMaps).status();
  EXPECT_EQ(ReasonOf(refused), "NO_MAPS");
  EXPECT_EQ(
      refused.message(),
      "mode SPEED with split 16 needs a worker that fills with a map set of that split; there is one of 18");
  const auto names = [&](const PolicyOptions& options, const std::vector<MapFacts>& decode) {
    return std::string(Decide(options, prompt, kWithMaps, decode).status().message());
  };
  const std::vector<MapFacts> both = {kMaps[0], {16, 256, 64, 512, "s"}, {20, 256, 64, 512, "t"}};
  EXPECT_THAT(names({}, both), testing::EndsWith("there is one of 18"))
      << "in wire form kv decode does not fill";
  PolicyOptions hidden;
  hidden.wire_form = ridge::WireForm::kHidden;
  prompt.split = 17;
  EXPECT_THAT(names(hidden, both), testing::EndsWith("there is one of 20, 18, 16"));
  prompt.split = 16;
  prompt.mode = Mode::kAuto;
  EXPECT_EQ(Must({}, prompt, kWithMaps).reason, "NO_MAPS") << "AUTO runs EXACT";
  // The probe's own worker must have it, too.
  PromptFacts probe{Mode::kQuality, 8000, 8000};
  probe.selector = ridge::Selector::kProbe;
  const std::vector<MapFacts> other = {{16, 256, 64, 512, "s"}};
  EXPECT_EQ(ReasonOf(Decide({}, probe, kWithMaps, other).status()), "NO_MAPS");
  probe.split = 16;
  const auto on_decode = Decide({}, probe, kWithMaps, other);
  ASSERT_TRUE(on_decode.ok()) << on_decode.status();
  EXPECT_EQ(on_decode->split, 16);
  EXPECT_EQ(on_decode->wire_form, ridge::WireForm::kHidden);
  for (const int asked : {0, 16}) {
    probe.split = asked;
    const absl::Status too_few = Decide({}, probe, {30, 15, {}}, other).status();
    EXPECT_EQ(ReasonOf(too_few), "NO_MAPS");
    EXPECT_THAT(std::string(too_few.message()),
                testing::HasSubstr("of split 16, and the prefill worker holds layers [0, 15)"));
  }
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
  EXPECT_EQ(Decide({}, {Mode::kSpeed, 8000, 8000, true}, kWithMaps, kMaps).status().code(),
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

TEST(SplitPolicyTest, WhoIsFilledOnDecodeWantsMapsThere) {
  PolicyOptions options;
  PromptFacts prompt{Mode::kQuality, 8000, 8000};
  EXPECT_EQ(WantsMapsOnDecode(options, prompt), MapsWanted::kNo);
  prompt.selector = ridge::Selector::kProbe;
  EXPECT_EQ(WantsMapsOnDecode(options, prompt), MapsWanted::kRequired);
  options.wire_form = ridge::WireForm::kHidden;
  EXPECT_EQ(WantsMapsOnDecode(options, prompt), MapsWanted::kRequired);
  EXPECT_EQ(WantsMapsOnDecode(options, {Mode::kSpeed, 8000, 8000}), MapsWanted::kPreferred);
  EXPECT_EQ(WantsMapsOnDecode(options, {Mode::kAuto, 8000, 8000}), MapsWanted::kPreferred);
  EXPECT_EQ(WantsMapsOnDecode(options, {Mode::kExact, 8000, 8000}), MapsWanted::kNo);
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
  EXPECT_TRUE(placement.Maps().empty());
  WorkerReport with_maps = Serving(7);
  with_maps.maps = kMaps;
  placement.Update(1, with_maps);
  placement.Update(2, Serving(0));
  EXPECT_NE(placement.Pick({})->index(), 1);
  EXPECT_EQ(placement.Pick({}, MapsWanted::kPreferred)->index(), 1);
  EXPECT_EQ(placement.Pick({}, MapsWanted::kRequired)->index(), 1);
  EXPECT_NE(placement.Pick({1}, MapsWanted::kPreferred)->index(), 1) << "EXACT elsewhere";
  EXPECT_EQ(placement.Pick({1}, MapsWanted::kRequired)->index(), 1) << "nobody else can";
  EXPECT_EQ(placement.Maps().front().split, 18) << "SPEED is on offer";
}

TEST(PlacementTest, MapsOfTheSplitCount) {
  Placement placement("prefill", {"a:1", "b:1", "c:1"});
  WorkerReport both = Serving(9), one = Serving(0);
  both.maps = {kMaps[0], {16, 512, 64, 512, "s"}};
  one.maps = kMaps;
  placement.Update(0, one);
  placement.Update(1, both);
  placement.Update(2, Serving(0));
  EXPECT_EQ(placement.Pick({}, MapsWanted::kRequired, 16)->index(), 1);
  EXPECT_EQ(placement.Pick({}, MapsWanted::kPreferred, 16)->index(), 1);
  EXPECT_EQ(placement.Pick({}, MapsWanted::kRequired, 18)->index(), 0);
  EXPECT_EQ(placement.Pick({}, MapsWanted::kRequired)->index(), 0) << "any split";
  EXPECT_NE(placement.Pick({}, MapsWanted::kRequired, 20)->index(), 1) << "for Decide to say NO_MAPS";
  WorkerReport lower = Serving(0);
  lower.layers = 30;
  lower.loaded_layers = 15;
  placement.Update(2, lower);
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(placement.Pick({}, MapsWanted::kRequired, 20)->index(), 2) << "it has no layers up to 20";
  }
  std::vector<int> splits;
  for (const MapFacts& maps : placement.Maps()) splits.push_back(maps.split);
  EXPECT_THAT(splits, testing::ElementsAre(18, 16));
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
