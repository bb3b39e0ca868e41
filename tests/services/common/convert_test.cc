#include "services/common/convert.h"

#include <gmock/gmock.h>

namespace ridgefill::common {
namespace {

TEST(ConvertTest, HelloAndDecisionSurvive) {
  runtime::Hello hello;
  hello.protocol_minor = 3;
  hello.model = {"n", "llama", "30 layers", "t", "w"};
  hello.maps = {{18, "m"}, {16, "n"}};
  hello.cache_layout = "bf16[64, 3, 64] x 30";
  const runtime::Hello again = FromProto(ToProto(hello));
  EXPECT_EQ(again.protocol_minor, 3);
  EXPECT_EQ(again.model.dimensions, "30 layers");
  EXPECT_EQ(again.model.weights_digest, "w");
  EXPECT_EQ(again.maps, hello.maps);
  EXPECT_EQ(again.cache_layout, hello.cache_layout);

  ridge::FillDecision decision;
  decision.mode = ridge::Mode::kSpeed;
  decision.split = 18;
  decision.tail = 512;
  decision.share = 0.08f;
  decision.selector = ridge::Selector::kRarity;
  decision.late_pass = ridge::LatePassAt::kPrefill;
  decision.wire_form = ridge::WireForm::kHidden;
  decision.local = true;
  decision.reason = "LONG_PROMPT";
  const auto same = FromProto(ToProto(decision));
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(same->mode, decision.mode);
  EXPECT_EQ(same->split, 18);
  EXPECT_EQ(same->tail, 512);
  EXPECT_EQ(same->share, 0.08f);
  EXPECT_EQ(same->selector, ridge::Selector::kRarity);
  EXPECT_EQ(same->late_pass, decision.late_pass);
  EXPECT_EQ(same->wire_form, decision.wire_form);
  EXPECT_TRUE(same->local);
  EXPECT_EQ(same->reason, "LONG_PROMPT");
}

TEST(ConvertTest, DecisionsOfAPeerAreChecked) {
  v1::FillDecision decision;
  EXPECT_FALSE(FromProto(decision).ok()) << "AUTO is undecided";
  decision.set_mode(v1::FILL_MODE_EXACT);
  EXPECT_TRUE(FromProto(decision).ok());
  decision.set_split(-1);
  EXPECT_FALSE(FromProto(decision).ok());
  decision.set_split(0);
  decision.set_share(std::numeric_limits<float>::quiet_NaN());
  EXPECT_FALSE(FromProto(decision).ok());
  decision.set_share(0);
  decision.set_selector(static_cast<v1::Selector>(9));
  EXPECT_FALSE(FromProto(decision).ok());
  decision.set_selector(v1::SELECTOR_UNSPECIFIED);
  decision.set_mode(static_cast<v1::FillMode>(77));
  EXPECT_FALSE(FromProto(decision).ok());
}

TEST(ConvertTest, UnsetSamplingKeepsTheDefaults) {
  const auto params = FromProto(v1::SamplingOptions());
  EXPECT_EQ(params.temperature, 1);
  EXPECT_EQ(params.top_p, 1);
  EXPECT_EQ(params.repetition_penalty, 1);
  EXPECT_FALSE(params.logprobs.has_value());
}

TEST(ConvertTest, DecodeCallSurvives) {
  runtime::DecodeCall call;
  call.request_id = "r";
  call.tokens = {1, 2, 3};
  call.decision.mode = ridge::Mode::kExact;
  call.prefill_address = "a:1";
  call.sampling.temperature = 0;
  call.sampling.top_k = 5;
  call.sampling.min_p = 0.25f;
  call.sampling.logit_bias = {{2, -1.0f}, {7, 3.0f}};
  call.sampling.stop_ids = {9};
  call.sampling.ignore_eos = true;
  call.sampling.min_tokens = 4;
  call.sampling.seed = ~uint64_t{0};
  call.sampling.logprobs = 0;
  call.max_tokens = 17;
  call.prompt_logprobs = true;
  const auto again = FromProto(ToProto(call));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->tokens, call.tokens);
  EXPECT_EQ(again->prefill_address, "a:1");
  EXPECT_EQ(again->sampling.temperature, 0);
  EXPECT_EQ(again->sampling.top_k, 5);
  EXPECT_EQ(again->sampling.min_p, 0.25f);
  EXPECT_EQ(again->sampling.logit_bias, call.sampling.logit_bias);
  EXPECT_EQ(again->sampling.stop_ids, call.sampling.stop_ids);
  EXPECT_TRUE(again->sampling.ignore_eos);
  EXPECT_EQ(again->sampling.min_tokens, 4);
  EXPECT_EQ(again->sampling.seed, ~uint64_t{0});
  EXPECT_EQ(again->sampling.logprobs, 0);
  EXPECT_EQ(again->max_tokens, 17);
  EXPECT_TRUE(again->prompt_logprobs);
}

TEST(ConvertTest, TokensCarryLogprobsOnlyWhenAskedFor) {
  sampling::SampleResult sample;
  sample.token = 5;
  sample.logprob = -0.5f;
  sample.top_logprobs = {{5, -0.5f}, {6, -1.5f}};
  sample.is_stop = true;
  const auto with = ToProto(sample, true);
  EXPECT_EQ(with.logprob(), -0.5f);
  ASSERT_EQ(with.top_size(), 2);
  EXPECT_EQ(with.top(1).id(), 6);
  EXPECT_TRUE(with.is_stop());
  const auto without = ToProto(sample, false);
  EXPECT_FALSE(without.has_logprob());
  EXPECT_EQ(without.top_size(), 0);
}

}  // namespace
}  // namespace ridgefill::common
