// Every route through the two engines against plain forwards that know nothing of them, bit for bit, on every
// backend.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/rng.h"
#include "tests/engine/runtime/random_load.h"
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
    options.maps = {maps.get()};
    options.prefill.chunk_tokens = split == 2 ? 128 : 64;
    options.decode.piece_tokens = 1 + static_cast<int64_t>(rng.NextBelow(60));
    Trio trio(options);
    int64_t outliers = 0;
    for (int64_t length : {33, 40, 128, 150, 231}) {
      SCOPED_TRACE(absl::StrCat("split ", split, ", prompt ", length));
      const auto tokens = RandomTokens(length, length, tiny().vocab());
      const ridge::FillDecision decision = Speed(split, 32);
      const PlainFill fill{maps.get(), PlanFor(tiny(), tokens, decision, *maps)};
      const Answer want = PlainAnswer(tiny(), tokens, kAnswer, &fill);
      StartedEvent started;
      ExpectSame(trio.Run(GreedyCall(tokens, Hidden(decision), kAnswer), &started), want);
      EXPECT_EQ(started.report.wire_form, ridge::WireForm::kHidden);
      EXPECT_EQ(started.report.outliers, static_cast<int64_t>(fill.plan.outliers.size()));
      ExpectSame(trio.Run(GreedyCall(tokens, decision, kAnswer), &started), want);
      EXPECT_EQ(started.report.wire_form, ridge::WireForm::kKv);
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

// Of whatever maps a set has, in chunks that rows of every map fall into.
TEST_P(OracleTest, EveryKindOfMapsFillsAsTheMethodOnWholeTensors) {
  const int split = 1;
  const auto tokens = RandomTokens(7, 150, tiny().vocab());
  std::vector<float> norms = PlainRowNorms(tiny(), tokens, split);
  std::nth_element(norms.begin(), norms.begin() + 140, norms.end());
  const float threshold = norms[140];
  for (const MapKind kind : kFoldedKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    const auto maps = tiny().RandomMaps(split, threshold, kind);
    TrioOptions options = Options();
    options.maps = {maps.get()};
    options.prefill.chunk_tokens = 64;
    Trio trio(options);
    for (const ridge::FillDecision& decision :
         {Speed(split, 32), Quality(split, 32, 0.3f, ridge::Selector::kRandom)}) {
      const PlainFill fill{maps.get(), PlanFor(tiny(), tokens, decision, *maps)};
      ExpectSame(trio.Run(GreedyCall(tokens, decision, kAnswer)),
                 PlainAnswer(tiny(), tokens, kAnswer, &fill));
    }
  }
}

// Side by side in one engine and at one time, sets of different splits, kinds and thresholds: each prompt by
// its own split's.
TEST_P(OracleTest, SeveralMapSetsFillEachItsOwnSplit) {
  const auto tokens = RandomTokens(7, 231, tiny().vocab());
  const auto threshold = [&](int split, int64_t outliers) {
    std::vector<float> norms = PlainRowNorms(tiny(), tokens, split);
    std::nth_element(norms.begin(), norms.end() - outliers, norms.end());
    return *(norms.end() - outliers);
  };
  const auto plain = tiny().RandomMaps(2, threshold(2, 12), MapKind::kPlain),
             mixture = tiny().RandomMaps(1, threshold(1, 30));
  TrioOptions options = Options();
  options.maps = {plain.get(), mixture.get()};
  options.prefill.chunk_tokens = 64;
  options.decode.piece_tokens = 20;
  Trio trio(options);
  std::vector<Submitted> running;
  std::vector<Answer> want;
  for (const ridge::DeviceMaps* maps : options.maps) {
    const int split = maps->manifest().split;
    for (const ridge::FillDecision& decision :
         {Speed(split, 32), Quality(split, 32, 0.3f, ridge::Selector::kRandom)}) {
      const PlainFill fill{maps, PlanFor(tiny(), tokens, decision, *maps)};
      for (const ridge::FillDecision& form : {decision, Hidden(decision)}) {
        want.push_back(PlainAnswer(tiny(), tokens, kAnswer, &fill));
        running.push_back(trio.Start(GreedyCall(tokens, form, kAnswer)));
      }
    }
  }
  for (size_t i = 0; i < running.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(running[i].out->Wait().status.ok()) << running[i].out->Wait().status;
    ExpectSame(running[i].out->answer(), want[i]);
  }
}

// The selected rows too, whatever the chunks that the scoring rows and the bulk fall into.
TEST_P(OracleTest, QualityEqualsTheMethodOnWholeTensors) {
  using ridge::Selector;
  const int split = tiny().layers() - 1;
  const auto maps = tiny().RandomMaps(split);
  for (int64_t chunk : {64, 128}) {
    TrioOptions options = Options();
    options.maps = {maps.get()};
    options.prefill.chunk_tokens = chunk;
    options.prefill.frame_bytes = 1 << 12;
    Trio trio(options);
    for (int64_t length : {33, 65, 150, 231}) {
      const auto tokens = RandomTokens(length, length, tiny().vocab());
      for (Selector selector :
           {Selector::kAttention, Selector::kRandom, Selector::kRarity, Selector::kNone}) {
        SCOPED_TRACE(absl::StrCat("chunk ", chunk, ", prompt ", length, ", ", ridge::Name(selector)));
        const ridge::FillDecision decision = Quality(split, 32, 0.4f, selector);
        const PlainFill fill{maps.get(), PlanFor(tiny(), tokens, decision, *maps)};
        const Answer want = PlainAnswer(tiny(), tokens, kAnswer, &fill);
        StartedEvent started;
        ExpectSame(trio.Run(GreedyCall(tokens, Hidden(decision), kAnswer), &started), want);
        EXPECT_EQ(started.report.selected, static_cast<int64_t>(fill.plan.selected.size()));
        ExpectSame(trio.Run(GreedyCall(tokens, decision, kAnswer), &started), want);
        EXPECT_EQ(started.report.mode, ridge::Mode::kQuality);
        EXPECT_EQ(started.report.selected, static_cast<int64_t>(fill.plan.selected.size()));
        if (selector == Selector::kNone) {
          EXPECT_EQ(started.report.selected, 0);
        }
        if (length > 140 && selector != Selector::kNone) {
          EXPECT_GE(started.report.selected, 17) << "a window, cut at the first row at most";
        }
        EXPECT_EQ(started.report.filled, fill.plan.filled_count());
        EXPECT_EQ(started.report.exact, 32 + started.report.outliers + started.report.selected);
      }
    }
    EXPECT_TRUE(trio.AllFree());
  }
}

// The rows that a probe selects too, outliers in the bulk and in the tail among its rows or filled before
// them, and whatever the pieces.
TEST_P(OracleTest, AProbeEqualsTheMethodOnWholeTensors) {
  const int split = 2;
  std::vector<float> norms = PlainRowNorms(tiny(), RandomTokens(1, 200, tiny().vocab()), split);
  std::nth_element(norms.begin(), norms.begin() + 190, norms.end());
  const auto maps = tiny().RandomMaps(split, norms[190]);
  int64_t selected = 0, filled = 0;
  for (int64_t piece : {7, 64}) {
    TrioOptions options = Options();
    options.maps = {maps.get()};
    options.prefill_has_maps = piece == 7;
    options.decode.piece_tokens = piece;
    options.prefill.frame_bytes = 1 << 12;
    Trio trio(options);
    for (int tail : {16, 90}) {  // fewer and more than the probe's rows
      for (int64_t length : {17, 91, 128, 200}) {
        SCOPED_TRACE(absl::StrCat("piece ", piece, ", tail ", tail, ", prompt ", length));
        const auto tokens = RandomTokens(length, length, tiny().vocab());
        const ridge::FillDecision decision = Hidden(Quality(split, tail, 0.3f, ridge::Selector::kProbe));
        if (tail >= length) continue;
        const PlainFill fill{maps.get(), PlanFor(tiny(), tokens, decision, *maps)};
        StartedEvent started;
        ExpectSame(trio.Run(GreedyCall(tokens, decision, kAnswer), &started),
                   PlainAnswer(tiny(), tokens, kAnswer, &fill));
        EXPECT_EQ(started.report.selected, static_cast<int64_t>(fill.plan.selected.size()));
        EXPECT_EQ(started.report.outliers, static_cast<int64_t>(fill.plan.outliers.size()));
        EXPECT_EQ(started.report.filled, fill.plan.filled_count());
        selected += started.report.selected;
        filled += started.report.filled;
      }
    }
    EXPECT_TRUE(trio.AllFree());
    EXPECT_GT(trio.decode().Stats().probe_rows, 0);
  }
  EXPECT_GT(selected, 60);
  EXPECT_GT(filled, 60) << "some windows must stay filled";
}

TEST_P(OracleTest, APromptWithinTheTailRunsExactInSpeedToo) {
  const auto maps = tiny().RandomMaps(2);
  TrioOptions options = Options();
  options.maps = {maps.get()};
  Trio trio(options);
  const auto tokens = RandomTokens(5, 90, tiny().vocab());
  Answer want = PlainAnswer(tiny(), tokens, kAnswer);
  want.prompt_logprobs.clear();
  StartedEvent started;
  ExpectSame(trio.Run(GreedyCall(tokens, Speed(2, 90), kAnswer), &started), want);
  EXPECT_EQ(started.report.filled, 0);
  EXPECT_EQ(started.report.exact, 90);
  for (const auto& decision : {Hidden(Speed(2, 90)), Hidden(Quality(2, 90, 0.5f)),
                               Hidden(Quality(2, 90, 0.5f, ridge::Selector::kProbe))}) {
    ExpectSame(trio.Run(GreedyCall(tokens, decision, kAnswer), &started), want);
    EXPECT_EQ(started.report.exact, 90);
  }
  ExpectSame(trio.Run(GreedyCall(tokens, Quality(2, 90, 0.5f), kAnswer), &started), want);
  EXPECT_EQ(started.report.exact, 90);
  EXPECT_EQ(started.report.selected, 0);
}

// Negative control: random maps must not give the exact answer, or the oracle above would show nothing.
TEST(NegativeControlTest, TheFillChangesTheAnswer) {
  const auto maps = Tiny().RandomMaps(2);
  TrioOptions options;
  options.maps = {maps.get()};
  Trio trio(options);
  const auto tokens = RandomTokens(6, 200, Tiny().vocab());
  const Answer exact = PlainAnswer(Tiny(), tokens, 1);
  const Answer filled = trio.Run(GreedyCall(tokens, Speed(2, 32), 1));
  EXPECT_NE(exact.tokens[0].logprob, filled.tokens[0].logprob);
}

TEST_P(OracleTest, ManyConcurrentRequestsAnswerAsAlone) {
  const auto maps = tiny().RandomMaps(2);
  TrioOptions options = Options();
  options.maps = {maps.get()};
  options.decode.max_running = 20;
  Trio trio(options);
  const int count = GetParam() == "reference" ? 20 : 80;
  std::vector<Load> loads = RandomLoad(21, count, *maps, tiny(), /*longest_answer=*/12);
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

}  // namespace
}  // namespace ridgefill::runtime
