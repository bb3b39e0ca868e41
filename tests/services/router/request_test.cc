// Requests into engine types, tokens into text, messages in order, times that add up.
#include "services/router/request.h"

#include <gmock/gmock.h>

#include <limits>

#include "engine/base/status.h"
#include "prometheus/metric_family.h"
#include "services/router/answer.h"
#include "services/router/metrics.h"
#include "services/router/outbox.h"
#include "services/router/request_timer.h"

namespace ridgefill::router {
namespace {

const RequestLimits kLimits = {"tiny", 320, 2048, 1000};

v1::GenerateRequest TextRequest() {
  v1::GenerateRequest request;
  request.set_text("hello");
  return request;
}

// Reason and field of the refusal of a request after `change`.
template <typename Change>
std::string Refusal(Change change) {
  v1::GenerateRequest request = TextRequest();
  change(request);
  const auto parsed = CheckRequest(request, kLimits);
  if (parsed.ok()) return "accepted";
  const auto detail = base::GetErrorDetail(parsed.status());
  if (!detail.has_value()) return "no detail";
  return detail->reason + " " + detail->field;
}

TEST(CheckRequestTest, TakesAPlainRequest) {
  const auto parsed = CheckRequest(TextRequest(), kLimits);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->mode, ridge::Mode::kAuto);
  EXPECT_FALSE(parsed->has_seed);
  EXPECT_EQ(parsed->max_tokens, 0);
  EXPECT_FALSE(parsed->sampling.logprobs.has_value());
}

TEST(CheckRequestTest, TakesASelectionWithQuality) {
  v1::GenerateRequest request = TextRequest();
  request.set_mode(v1::FILL_MODE_QUALITY);
  auto parsed = CheckRequest(request, kLimits);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_FALSE(parsed->share.has_value());
  EXPECT_EQ(parsed->selector, ridge::Selector::kAttention);
  request.mutable_selection()->set_share(0);
  request.mutable_selection()->set_selector(v1::SELECTOR_RANDOM);
  parsed = CheckRequest(request, kLimits);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->share, 0.0f);
  EXPECT_EQ(parsed->selector, ridge::Selector::kRandom);
}

TEST(CheckRequestTest, NamesTheFieldThatIsWrong) {
  EXPECT_EQ(Refusal([](auto& r) { r.set_model("other"); }), "MODEL_NOT_FOUND ");
  EXPECT_EQ(Refusal([](auto& r) { r.clear_prompt(); }), "PROMPT_MISSING prompt");
  EXPECT_EQ(Refusal([](auto& r) { r.set_text(""); }), "PROMPT_EMPTY text");
  EXPECT_EQ(Refusal([](auto& r) { r.set_text(std::string(1001, 'a')); }), "PROMPT_TOO_LONG text");
  EXPECT_EQ(Refusal([](auto& r) { r.mutable_chat(); }), "PROMPT_EMPTY chat.messages");
  EXPECT_EQ(Refusal([](auto& r) { r.mutable_tokens(); }), "PROMPT_EMPTY tokens.ids");
  EXPECT_EQ(Refusal([](auto& r) { r.mutable_tokens()->add_ids(320); }), "TOKEN_ID_RANGE tokens.ids[0]");
  EXPECT_EQ(Refusal([](auto& r) { r.mutable_tokens()->add_ids(-1); }), "TOKEN_ID_RANGE tokens.ids[0]");
  EXPECT_EQ(Refusal([](auto& r) { r.set_mode(static_cast<v1::FillMode>(99)); }), "MODE_UNKNOWN mode");
  EXPECT_EQ(Refusal([](auto& r) {
              r.set_mode(v1::FILL_MODE_SPEED);
              r.mutable_selection()->set_share(0.1f);
            }),
            "SELECTION_QUALITY_ONLY selection");
  EXPECT_EQ(Refusal([](auto& r) { r.mutable_selection(); }), "SELECTION_QUALITY_ONLY selection");
  EXPECT_EQ(Refusal([](auto& r) {
              r.set_mode(v1::FILL_MODE_QUALITY);
              r.mutable_selection()->set_selector(static_cast<v1::Selector>(9));
            }),
            "SELECTOR_UNKNOWN selection.selector");
  EXPECT_EQ(Refusal([](auto& r) { r.set_split(0); }), "SPLIT_RANGE split");
  EXPECT_EQ(Refusal([](auto& r) {
              r.set_mode(v1::FILL_MODE_EXACT);
              r.set_split(2);
            }),
            "SPLIT_FILLED_ONLY split");
  EXPECT_EQ(Refusal([](auto& r) { r.mutable_stop()->set_max_tokens(0); }),
            "MAX_TOKENS_RANGE stop.max_tokens");
  EXPECT_EQ(Refusal([](auto& r) { r.mutable_stop()->set_min_tokens(-1); }),
            "MIN_TOKENS_RANGE stop.min_tokens");
  EXPECT_EQ(Refusal([](auto& r) { r.mutable_stop()->add_stop_ids(320); }), "TOKEN_ID_RANGE stop.stop_ids[0]");
  EXPECT_EQ(Refusal([](auto& r) { r.mutable_stop()->add_stop_strings(""); }),
            "STOP_STRINGS stop.stop_strings[0]");
  EXPECT_EQ(Refusal([](auto& r) {
              for (int i = 0; i < 17; ++i) r.mutable_stop()->add_stop_strings("x");
            }),
            "STOP_STRINGS stop.stop_strings");
  EXPECT_EQ(Refusal([](auto& r) { r.mutable_stop()->add_stop_strings("\xC3"); }),
            "INVALID_UTF8 stop.stop_strings");
  EXPECT_EQ(Refusal([](auto& r) { r.mutable_logprobs()->set_top(21); }), "LOGPROBS_RANGE logprobs.top");
  EXPECT_THAT(Refusal([](auto& r) { r.mutable_sampling()->set_top_p(1.5f); }),
              testing::HasSubstr("sampling.top_p"));
  EXPECT_THAT(Refusal([](auto& r) {
                r.mutable_sampling()->set_temperature(std::numeric_limits<float>::quiet_NaN());
              }),
              testing::HasSubstr("sampling.temperature"));
  EXPECT_THAT(Refusal([](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[320] = 1; }),
              testing::HasSubstr("sampling.logit_bias"));
}

TEST(CheckRequestTest, AnswerTokensFitTheContext) {
  ParsedRequest request;
  EXPECT_EQ(*AnswerTokens(request, 100, 2048), 1948);
  request.max_tokens = 10;
  EXPECT_EQ(*AnswerTokens(request, 100, 2048), 10);
  EXPECT_EQ(*AnswerTokens(request, 2038, 2048), 10);
  EXPECT_FALSE(AnswerTokens(request, 2039, 2048).ok());
  request.max_tokens = 0;
  EXPECT_FALSE(AnswerTokens(request, 2048, 2048).ok());
}

class WithTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer =
        tokenizer::Tokenizer::FromHuggingFace(RIDGEFILL_SOURCE_DIR "/tests/data/golden/tiny/llama");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }
  // The text of an answer whose tokens come in pieces of `step`, and whether a stop string ended it.
  std::pair<std::string, bool> Run(const std::string& text, std::vector<std::string> stops, int min_tokens,
                                   v1::Delta* all = nullptr) {
    auto answer = Answer::Create(tokenizer_.get(), std::move(stops), min_tokens);
    EXPECT_TRUE(answer.ok());
    const auto ids = *tokenizer_->Encode(text, {.add_special = false});
    v1::Delta delta;
    bool stopped = false;
    for (const int32_t id : ids) {
      v1::GeneratedToken token;
      token.set_id(id);
      if ((stopped = answer->Push(token, delta))) break;
    }
    answer->Finish(delta);
    if (all != nullptr) *all = delta;
    return {delta.text(), stopped};
  }
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
};

TEST_F(WithTokenizer, PromptsOfAllKinds) {
  v1::GenerateRequest request = TextRequest();
  EXPECT_EQ(*EncodePrompt(request, *tokenizer_), *tokenizer_->Encode("hello"));
  request.mutable_tokens()->add_ids(7);
  EXPECT_THAT(*EncodePrompt(request, *tokenizer_), testing::ElementsAre(7));
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("hello");
  EXPECT_EQ(*EncodePrompt(request, *tokenizer_), *tokenizer_->EncodeChat({{"user", "hello"}}));
  message->set_content("caf\xE9");
  EXPECT_EQ(base::GetErrorDetail(EncodePrompt(request, *tokenizer_).status())->reason, "INVALID_UTF8");
  request.set_text("caf\xE9");
  EXPECT_EQ(base::GetErrorDetail(EncodePrompt(request, *tokenizer_).status())->reason, "INVALID_UTF8");
  message = request.mutable_chat()->add_messages();
  message->set_content("hello");
  message->set_role("emperor");
  const auto refused = EncodePrompt(request, *tokenizer_);
  EXPECT_EQ(base::GetErrorDetail(refused.status())->field, "chat.messages");
}

TEST_F(WithTokenizer, StopStringsAcrossTokensEndTheAnswer) {
  const std::string text = "one two three four";
  EXPECT_EQ(Run(text, {}, 0), std::make_pair(text, false));
  EXPECT_EQ(Run(text, {"o th"}, 0), std::make_pair(std::string("one tw"), true));
  EXPECT_EQ(Run(text, {"fourth"}, 0), std::make_pair(text, false)) << "what was held back is not lost";
  const auto count = static_cast<int>(tokenizer_->Encode(text, {.add_special = false})->size());
  EXPECT_EQ(Run(text, {"o th"}, count), std::make_pair(text, false)) << "not before min_tokens";
}

TEST_F(WithTokenizer, EndTokensHaveNoText) {
  auto answer = *Answer::Create(tokenizer_.get(), {}, 0);
  v1::GeneratedToken token;
  token.set_id(70);
  token.set_is_stop(true);
  v1::Delta delta;
  EXPECT_FALSE(answer.Push(token, delta));
  answer.Finish(delta);
  EXPECT_EQ(delta.text(), "");
  EXPECT_EQ(delta.tokens_size(), 1);
  EXPECT_EQ(answer.tokens(), 1);
}

TEST(OutboxTest, KeepsOrderAndJoinsDeltas) {
  Outbox outbox;
  EXPECT_FALSE(outbox.Next().has_value());
  outbox.Started({});
  outbox.delta().set_text("a");
  outbox.delta().add_tokens()->set_id(1);
  outbox.delta().mutable_text()->append("b");
  outbox.delta().add_tokens()->set_id(2);
  outbox.Finished({});
  EXPECT_TRUE(outbox.Next()->has_started());
  const auto delta = outbox.Next();
  EXPECT_EQ(delta->delta().text(), "ab");
  EXPECT_EQ(delta->delta().tokens_size(), 2);
  EXPECT_TRUE(outbox.Next()->has_finished());
  EXPECT_FALSE(outbox.Next().has_value());
  outbox.delta().add_tokens()->set_id(3);
  EXPECT_EQ(outbox.Next()->delta().tokens(0).id(), 3) << "a delta without text is one as well";
}

TEST(RequestTimerTest, PartsAddUpToTtft) {
  base::ManualClock clock;
  RequestTimer timer(clock);
  clock.Advance(absl::Milliseconds(5));
  timer.Admitted();
  clock.Advance(absl::Milliseconds(100));
  v1::DecodeStarted started;
  started.set_decode_queue_seconds(0.010);
  started.set_prefill_queue_seconds(0.002);
  started.set_prefill_compute_seconds(0.050);
  started.set_transfer_exposed_seconds(0.004);
  started.set_late_pass_seconds(0.020);
  started.set_first_step_seconds(0.003);
  timer.DecodeStarted(started);
  EXPECT_EQ(timer.Now().ttft(), 0) << "no token was written yet";
  timer.TokenWritten();
  clock.Advance(absl::Seconds(1));
  timer.TokenWritten();
  const v1::Timing timing = timer.Now();
  EXPECT_NEAR(timing.ttft(), 0.105, 1e-9);
  EXPECT_NEAR(timing.total(), 1.105, 1e-9);
  const double parts = timing.admission_wait() + timing.route() + timing.decode_queue() +
                       timing.prefill_queue() + timing.prefill_compute() + timing.transfer_exposed() +
                       timing.late_pass() + timing.first_step();
  EXPECT_NEAR(parts, timing.ttft(), 1e-9);
}

TEST(MetricsTest, LengthsFallIntoFewBuckets) {
  EXPECT_EQ(LengthBucket(1), "le_512");
  EXPECT_EQ(LengthBucket(512), "le_512");
  EXPECT_EQ(LengthBucket(513), "le_2048");
  EXPECT_EQ(LengthBucket(8000), "le_8192");
  EXPECT_EQ(LengthBucket(100000), "gt_32768");
}

TEST(MetricsTest, FailedRequestsAreCountedButNotTimed) {
  RouterMetrics metrics("tiny");
  RequestRecord record;
  record.fill.set_exact(10);
  record.fill.set_mode(v1::FILL_MODE_EXACT);
  record.timing.set_ttft(0.5);
  record.status = absl::UnavailableError("gone");
  metrics.Observe(record);
  record.status = absl::OkStatus();
  metrics.Observe(record);
  double requests = 0;
  uint64_t timed = 0;
  for (const auto& family : metrics.collectable().Collect()) {
    for (const auto& metric : family.metric) {
      if (family.name == "ridgefill_requests_total") requests += metric.counter.value;
      if (family.name == "ridgefill_ttft_seconds") timed += metric.histogram.sample_count;
    }
  }
  EXPECT_EQ(requests, 2);
  EXPECT_EQ(timed, 1u);
}

}  // namespace
}  // namespace ridgefill::router
