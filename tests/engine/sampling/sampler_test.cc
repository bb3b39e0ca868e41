// Distributions worked out by hand, and the properties that callers rely on.
#include "engine/sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "engine/base/rng.h"
#include "engine/base/status.h"

namespace ridgefill::sampling {
namespace {

using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Logits whose softmax is `probabilities`.
std::vector<float> LogitsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  logits.reserve(probabilities.size());
  for (double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

SampleResult SampleOnce(const SamplingParams& params, std::vector<float> logits,
                        SamplerContext context = {}) {
  context.vocab_size = static_cast<int>(logits.size());
  Sampler sampler(params, context);
  auto result = sampler.Sample(absl::MakeSpan(logits));
  EXPECT_TRUE(result.ok()) << result.status();
  return *result;
}

// How often each token comes first, over `draws` seeds.
std::vector<int> Count(SamplingParams params, const std::vector<float>& logits, int draws,
                       SamplerContext context = {}) {
  std::vector<int> counts(logits.size());
  for (int seed = 0; seed < draws; ++seed) {
    params.seed = static_cast<uint64_t>(seed);
    ++counts[SampleOnce(params, logits, context).token];
  }
  return counts;
}

// Pearson's statistic against `expected` probabilities; a token of probability 0 must not occur.
double ChiSquare(const std::vector<int>& counts, const std::vector<double>& expected) {
  int draws = 0;
  for (int count : counts) draws += count;
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double mean = expected[i] * draws;
    if (mean == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i;
    } else {
      sum += (counts[i] - mean) * (counts[i] - mean) / mean;
    }
  }
  return sum;
}

// With at most 4 degrees of freedom a true sampler exceeds this once in 50,000; the seeds are fixed.
constexpr double kChiSquareBound = 27;
constexpr int kDraws = 20000;

TEST(SamplerTest, DrawsFromTheSoftmax) {
  const std::vector<double> p = {0.5, 0.2, 0.15, 0.1, 0.05};
  EXPECT_LT(ChiSquare(Count({}, LogitsOf(p), kDraws), p), kChiSquareBound);
  // The check itself can fail.
  EXPECT_GT(ChiSquare(Count({}, LogitsOf(p), kDraws), {0.48, 0.22, 0.15, 0.1, 0.05}), kChiSquareBound);
}

TEST(SamplerTest, DrawsAlongOneAnswerFromTheSoftmax) {
  const std::vector<double> p = {0.5, 0.2, 0.15, 0.1, 0.05};
  Sampler sampler({.seed = 42}, {.vocab_size = 5});
  std::vector<int> counts(5);
  std::map<std::pair<int, int>, int> pairs;
  int previous = -1;
  for (int i = 0; i < kDraws; ++i) {
    std::vector<float> logits = LogitsOf(p);
    const int token = sampler.Sample(absl::MakeSpan(logits))->token;
    ++counts[token];
    if (previous >= 0) ++pairs[{previous, token}];
    previous = token;
  }
  EXPECT_LT(ChiSquare(counts, p), kChiSquareBound);
  // Neighbours are independent: the pair (0, 0) has probability 1/4.
  EXPECT_NEAR(pairs[std::make_pair(0, 0)] / double{kDraws}, 0.25, 0.015);
}

TEST(SamplerTest, TemperatureSharpensAndFlattens) {
  // p^(1/T), renormalised: 0.6 and 0.4 at T = 1/2 give 0.36 : 0.16.
  EXPECT_LT(ChiSquare(Count({.temperature = 0.5f}, LogitsOf({0.6, 0.4}), kDraws), {0.36 / 0.52, 0.16 / 0.52}),
            kChiSquareBound);
  EXPECT_LT(ChiSquare(Count({.temperature = 2}, LogitsOf({0.64, 0.04, 0.32}), kDraws),
                      {0.8 / 1.565685, 0.2 / 1.565685, 0.565685 / 1.565685}),
            kChiSquareBound);
  // So small that every other token underflows.
  EXPECT_EQ(SampleOnce({.temperature = 1e-30f}, {1, 3, 2}).token, 1);
}

TEST(SamplerTest, GreedyTakesTheLowestOfEqualLogits) {
  EXPECT_EQ(SampleOnce({.temperature = 0}, {1, 3, 3, 3}).token, 1);
  EXPECT_EQ(SampleOnce({.temperature = 0}, {-5, -7}).token, 0);
  // top_k and the rest have no say.
  EXPECT_EQ(SampleOnce({.temperature = 0, .top_k = 1, .top_p = 0.1f, .min_p = 1}, {1, 3, 3}).token, 1);
}

TEST(SamplerTest, TopKKeepsTheLowerIdsOfEqualLogits) {
  EXPECT_LT(ChiSquare(Count({.top_k = 2}, LogitsOf({0.1, 0.5, 0.3, 0.1}), kDraws), {0, 0.625, 0.375, 0}),
            kChiSquareBound);
  EXPECT_LT(ChiSquare(Count({.top_k = 2}, {1, 1, 1, 1}, kDraws), {0.5, 0.5, 0, 0}), kChiSquareBound);
  EXPECT_LT(ChiSquare(Count({.top_k = 99}, {1, 1, 1, 1}, kDraws), {0.25, 0.25, 0.25, 0.25}), kChiSquareBound);
}

TEST(SamplerTest, TopPKeepsTheFewestThatReachIt) {
  const std::vector<float> logits = LogitsOf({0.1, 0.5, 0.3, 0.1});
  EXPECT_LT(ChiSquare(Count({.top_p = 0.75f}, logits, kDraws), {0, 0.625, 0.375, 0}), kChiSquareBound);
  EXPECT_LT(ChiSquare(Count({.top_p = 0.85f}, logits, kDraws), {1. / 9, 5. / 9, 3. / 9, 0}), kChiSquareBound);
  EXPECT_EQ(Count({.top_p = 0.01f}, logits, 100)[1], 100);
}

TEST(SamplerTest, TopPSortsAsFarAsItNeeds) {
  // 5,000 equal tokens: the first half of the ids is the nucleus of 0.5.
  const std::vector<float> logits(5000, 0.25f);
  int highest = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    highest = std::max(highest, static_cast<int>(SampleOnce({.top_p = 0.5f, .seed = seed}, logits).token));
  }
  EXPECT_LT(highest, 2501);
  EXPECT_GT(highest, 2450);
}

TEST(SamplerTest, MinPComparesWithTheMostLikely) {
  EXPECT_LT(ChiSquare(Count({.min_p = 0.25f}, LogitsOf({0.1, 0.5, 0.3, 0.1}), kDraws), {0, 0.625, 0.375, 0}),
            kChiSquareBound);
  EXPECT_EQ(Count({.min_p = 1}, LogitsOf({0.1, 0.5, 0.3, 0.1}), 100)[1], 100);
}

TEST(SamplerTest, TopPAppliesToWhatTopKLeaves) {
  // Of {0.4, 0.3}, renormalised to {4/7, 3/7}, 0.5 keeps the first only; of all five it would keep two.
  const std::vector<float> logits = LogitsOf({0.4, 0.3, 0.1, 0.1, 0.1});
  EXPECT_EQ(Count({.top_k = 2, .top_p = 0.5f}, logits, 200)[0], 200);
  EXPECT_LT(Count({.top_p = 0.5f}, logits, 200)[0], 200);
}

TEST(SamplerTest, RepetitionPenaltyCountsPromptAndAnswerOnce) {
  const std::vector<int32_t> prompt = {0, 0, 2}, generated = {2, 3};
  Sampler sampler({.temperature = 0, .repetition_penalty = 2},
                  {.vocab_size = 5, .prompt = prompt, .generated = generated});
  std::vector<float> logits = {4, 1, -1, 3, 0.5f};
  EXPECT_EQ(sampler.Sample(absl::MakeSpan(logits))->token, 0);
  EXPECT_THAT(logits, ElementsAre(2, 1, -2, 1.5f, 0.5f));
}

TEST(SamplerTest, PresenceAndFrequencyCountTheAnswerOnly) {
  const std::vector<int32_t> prompt = {0, 1}, generated = {2, 2, 3};
  Sampler sampler({.temperature = 0, .presence_penalty = 0.5f, .frequency_penalty = 1},
                  {.vocab_size = 4, .prompt = prompt, .generated = generated});
  std::vector<float> logits = {1, 1, 9, 9};
  EXPECT_EQ(sampler.Sample(absl::MakeSpan(logits))->token, 3);
  EXPECT_THAT(logits, ElementsAre(1, 1, 6.5f, 7.5f));
  // The token just sampled counts from now on.
  logits = {1, 1, 9, 9};
  EXPECT_EQ(sampler.Sample(absl::MakeSpan(logits))->token, 2);
  EXPECT_THAT(logits, ElementsAre(1, 1, 6.5f, 6.5f));
}

TEST(SamplerTest, BiasComesAfterPenalties) {
  const std::vector<int32_t> prompt = {0};
  Sampler sampler({.temperature = 0, .repetition_penalty = 2, .logit_bias = {{0, 10.f}, {1, -100.f}}},
                  {.vocab_size = 3, .prompt = prompt});
  std::vector<float> logits = {4, 90, -1};
  EXPECT_EQ(sampler.Sample(absl::MakeSpan(logits))->token, 0);
  EXPECT_THAT(logits, ElementsAre(12, -10, -1));
}

TEST(SamplerTest, MinTokensHoldsEndTokensBack) {
  const std::vector<int32_t> eos = {1, 77};  // 77 is no row of the logits
  Sampler sampler({.temperature = 0, .stop_ids = {2}, .min_tokens = 2}, {.vocab_size = 4, .eos_ids = eos});
  const auto next = [&](std::vector<float> logits) { return *sampler.Sample(absl::MakeSpan(logits)); };
  EXPECT_EQ(next({0, 9, 8, 1}).token, 3);
  EXPECT_FALSE(sampler.IsStop(1));
  EXPECT_EQ(next({0, 9, 8, 1}).token, 3);
  EXPECT_TRUE(sampler.IsStop(1));
  EXPECT_TRUE(sampler.IsStop(2));
  EXPECT_FALSE(sampler.IsStop(3));
  const SampleResult last = next({0, 9, 8, 1});
  EXPECT_EQ(last.token, 1);
  EXPECT_TRUE(last.is_stop);
}

TEST(SamplerTest, MinTokensHoldsWhenSampling) {
  const std::vector<int32_t> eos = {0};
  const auto counts = Count({.min_tokens = 1}, LogitsOf({0.9, 0.05, 0.05}), kDraws, {.eos_ids = eos});
  EXPECT_LT(ChiSquare(counts, {0, 0.5, 0.5}), kChiSquareBound);
}

TEST(SamplerTest, IgnoreEosKeepsTheRequestsOwnStops) {
  const std::vector<int32_t> eos = {1};
  const Sampler sampler({.stop_ids = {2}, .ignore_eos = true}, {.vocab_size = 4, .eos_ids = eos});
  EXPECT_FALSE(sampler.IsStop(1));
  EXPECT_TRUE(sampler.IsStop(2));
}

TEST(SamplerTest, DrawsDependOnSeedAndPositionOnly) {
  const std::vector<float> logits(50, 0.f);
  const auto run = [&](uint64_t seed, int steps, std::vector<int32_t> generated) {
    Sampler sampler({.seed = seed}, {.vocab_size = 50, .generated = generated});
    for (int i = 0; i < steps; ++i) {
      std::vector<float> copy = logits;
      generated.push_back(sampler.Sample(absl::MakeSpan(copy))->token);
    }
    return generated;
  };
  const std::vector<int32_t> whole = run(5, 20, {});
  EXPECT_EQ(run(5, 20, {}), whole);
  // Moved elsewhere after seven tokens.
  EXPECT_EQ(run(5, 13, std::vector<int32_t>(whole.begin(), whole.begin() + 7)), whole);
  EXPECT_NE(run(6, 20, {}), whole);
  EXPECT_GT(std::set<int32_t>(whole.begin(), whole.end()).size(), 10u);
}

TEST(SamplerTest, LogprobsAreOfTheUntouchedLogits) {
  const std::vector<int32_t> prompt = {1};
  const SampleResult result =
      SampleOnce({.temperature = 0, .repetition_penalty = 10, .logit_bias = {{3, 50.f}}, .logprobs = 3},
                 LogitsOf({0.2, 0.5, 0.2, 0.1}), {.prompt = prompt});
  EXPECT_EQ(result.token, 3);
  EXPECT_THAT(result.logprob, FloatNear(std::log(0.1f), 1e-6));
  ASSERT_EQ(result.top_logprobs.size(), 3u);
  EXPECT_EQ(result.top_logprobs[0].token, 1);
  EXPECT_THAT(result.top_logprobs[0].logprob, FloatNear(std::log(0.5f), 1e-6));
  EXPECT_EQ(result.top_logprobs[1].token, 0);  // a tie: the lower id first
  EXPECT_EQ(result.top_logprobs[2].token, 2);
  const SampleResult none = SampleOnce({.logprobs = 0}, {1, 1});
  EXPECT_THAT(none.logprob, FloatNear(std::log(0.5f), 1e-6));
  EXPECT_TRUE(none.top_logprobs.empty());
  EXPECT_EQ(SampleOnce({}, {1, 1}).logprob, 0);
}

TEST(SamplerTest, LogprobsOfHugeLogitsAreFinite) {
  const auto logprobs = ComputeLogprobs(std::vector<float>{3e38f, -3e38f, 3e38f}, 2, 20);
  ASSERT_TRUE(logprobs.ok());
  EXPECT_THAT(logprobs->logprob, FloatNear(std::log(0.5f), 1e-6));
  EXPECT_EQ(logprobs->top.size(), 3u);
}

TEST(SamplerTest, RefusesLogitsThatAreNotFinite) {
  for (float bad : {kNan, kInf, -kInf}) {
    Sampler sampler({.temperature = 0}, {.vocab_size = 3});
    std::vector<float> logits = {1, bad, 0};
    const auto result = sampler.Sample(absl::MakeSpan(logits));
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
    EXPECT_EQ(base::GetErrorDetail(result.status())->reason, "LOGITS_NOT_FINITE");
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("token 1"));
    EXPECT_EQ(sampler.generated(), 0);
    EXPECT_FALSE(ComputeLogprobs(logits, 0, 2).ok());
  }
}

TEST(SamplerTest, ExtremeLogitsStayDefined) {
  const std::vector<int32_t> prompt = {0, 1};
  const SamplingParams params{
      .temperature = 1, .top_k = 3, .top_p = 0.9f, .min_p = 0.1f, .repetition_penalty = 0.01f};
  EXPECT_EQ(SampleOnce(params, {3e38f, -3e38f, 0, 1}, {.prompt = prompt}).token, 0);
}

TEST(SamplerTest, SharpCutsOverRandomLogitsAgreeWithSorting) {
  base::Rng rng(9);
  for (int round = 0; round < 50; ++round) {
    std::vector<float> logits(700);
    for (float& logit : logits) logit = static_cast<float>(rng.NextDouble() * 8);
    const int top_k = 1 + static_cast<int>(rng.NextBelow(20));
    std::vector<std::pair<float, int>> sorted;
    sorted.reserve(logits.size());
    for (int i = 0; i < 700; ++i) sorted.push_back({-logits[i], i});
    std::sort(sorted.begin(), sorted.end());
    std::set<int> allowed;
    for (int i = 0; i < top_k; ++i) allowed.insert(sorted[i].second);
    std::set<int> seen;
    for (uint64_t seed = 0; seed < 300; ++seed) {
      seen.insert(SampleOnce({.temperature = 50, .top_k = top_k, .seed = seed}, logits).token);
    }
    EXPECT_TRUE(std::includes(allowed.begin(), allowed.end(), seen.begin(), seen.end()));
    EXPECT_GT(seen.size() + 2, allowed.size());
  }
}

TEST(ValidateTest, AcceptsTheDefaultsAndTheEdges) {
  EXPECT_TRUE(Validate({}, 10).ok());
  EXPECT_TRUE(Validate({.temperature = 0, .top_p = 1e-6f, .min_p = 1, .logprobs = 20}, 10).ok());
}

TEST(ValidateTest, NamesTheFieldAndItsRange) {
  struct Case {
    SamplingParams params;
    const char *field, *allowed;
  };
  const Case cases[] = {
      {{.temperature = -0.1f}, "temperature", "[0, 100]"},
      {{.temperature = kNan}, "temperature", "[0, 100]"},
      {{.temperature = kInf}, "temperature", "[0, 100]"},
      {{.top_k = -1}, "top_k", "at least 0"},
      {{.top_p = 0}, "top_p", "(0, 1]"},
      {{.top_p = 1.1f}, "top_p", "(0, 1]"},
      {{.top_p = kNan}, "top_p", "(0, 1]"},
      {{.min_p = -0.1f}, "min_p", "[0, 1]"},
      {{.min_p = kNan}, "min_p", "[0, 1]"},
      {{.repetition_penalty = 0}, "repetition_penalty", "[0.01, 10]"},
      {{.repetition_penalty = kNan}, "repetition_penalty", "[0.01, 10]"},
      {{.presence_penalty = 2.5f}, "presence_penalty", "[-2, 2]"},
      {{.presence_penalty = kNan}, "presence_penalty", "[-2, 2]"},
      {{.frequency_penalty = -3}, "frequency_penalty", "[-2, 2]"},
      {{.frequency_penalty = kNan}, "frequency_penalty", "[-2, 2]"},
      {{.logit_bias = {{10, 1.f}}}, "logit_bias", "[0, 10)"},
      {{.logit_bias = {{-1, 1.f}}}, "logit_bias", "[0, 10)"},
      {{.logit_bias = {{1, 101.f}}}, "logit_bias", "[-100, 100]"},
      {{.logit_bias = {{1, kNan}}}, "logit_bias", "[-100, 100]"},
      {{.logit_bias = {{1, 1.f}, {1, 2.f}}}, "logit_bias", "one entry"},
      {{.logit_bias = std::vector<std::pair<int32_t, float>>(1025)}, "logit_bias", "1024"},
      {{.stop_ids = {10}}, "stop_ids", "[0, 10)"},
      {{.min_tokens = -1}, "min_tokens", "at least 0"},
      {{.logprobs = 21}, "logprobs", "[0, 20]"},
      {{.logprobs = -1}, "logprobs", "[0, 20]"},
  };
  for (const Case& c : cases) {
    const absl::Status status = Validate(c.params, 10);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field;
    ASSERT_TRUE(base::GetErrorDetail(status).has_value()) << c.field;
    EXPECT_EQ(base::GetErrorDetail(status)->field, std::string("sampling.") + c.field);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.allowed));
  }
}

}  // namespace
}  // namespace ridgefill::sampling
