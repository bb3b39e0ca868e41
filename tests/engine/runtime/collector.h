// What came out of one request.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/check.h"
#include "engine/runtime/decode_engine.h"
#include "tests/engine/runtime/tiny_models.h"

namespace ridgefill::runtime {

// Thread-safe. Checks the order of events: Started, tokens, Finished, nothing more.
class Collector {
 public:
  // Called after each token, on the engine's thread and outside any lock. Set before Submit.
  std::function<void(size_t tokens)> on_token;

  void Take(DecodeEvent event) {
    const size_t tokens = Record(std::move(event));
    if (tokens > 0 && on_token) on_token(tokens);
  }
  bool WaitFor(size_t tokens, absl::Duration at_most = absl::Seconds(60)) const {
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return finished_.has_value() || tokens_.size() >= tokens;
    };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&there), at_most);
  }
  // The end; aborts the test when it does not come.
  FinishedEvent Wait() const {
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return finished_.has_value(); };
    absl::MutexLock lock(&mutex_);
    RF_CHECK(mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(120)));
    return *finished_;
  }
  bool finished() const {
    absl::MutexLock lock(&mutex_);
    return finished_.has_value();
  }
  std::optional<StartedEvent> started() const {
    absl::MutexLock lock(&mutex_);
    return started_;
  }
  Answer answer() const {
    absl::MutexLock lock(&mutex_);
    return {tokens_, started_ ? started_->prompt_logprobs : std::vector<float>()};
  }

 private:
  // How many tokens there are when the event was one, else 0.
  size_t Record(DecodeEvent event) {
    absl::MutexLock lock(&mutex_);
    RF_CHECK(!finished_);
    if (auto* token = std::get_if<TokenEvent>(&event)) {
      RF_CHECK(started_);
      tokens_.push_back(std::move(token->sample));
      return tokens_.size();
    }
    if (auto* started = std::get_if<StartedEvent>(&event)) {
      RF_CHECK(!started_);
      started_ = std::move(*started);
    } else {
      finished_ = std::get<FinishedEvent>(std::move(event));
    }
    return 0;
  }

  mutable absl::Mutex mutex_;
  std::optional<StartedEvent> started_ ABSL_GUARDED_BY(mutex_);
  std::vector<sampling::SampleResult> tokens_ ABSL_GUARDED_BY(mutex_);
  std::optional<FinishedEvent> finished_ ABSL_GUARDED_BY(mutex_);
};

class CollectorSink : public TokenSink {
 public:
  explicit CollectorSink(std::shared_ptr<Collector> collector) : collector_(std::move(collector)) {}
  void OnEvent(DecodeEvent event) override { collector_->Take(std::move(event)); }

 private:
  std::shared_ptr<Collector> collector_;
};

// A greedy call that reports all log-probabilities and does not stop at an end id.
inline DecodeCall GreedyCall(std::vector<int32_t> tokens, const ridge::FillDecision& decision,
                             int64_t max_tokens) {
  DecodeCall call;
  call.tokens = std::move(tokens);
  call.decision = decision;
  call.prefill_address = "somewhere";
  call.sampling.temperature = 0;
  call.sampling.ignore_eos = true;
  call.sampling.logprobs = 20;
  call.max_tokens = max_tokens;
  return call;
}

struct Submitted {
  uint64_t handle = 0;
  std::shared_ptr<Collector> out = std::make_shared<Collector>();
};

inline absl::StatusOr<Submitted> Submit(DecodeEngine& engine, DecodeCall call, Submitted submitted = {}) {
  absl::StatusOr<uint64_t> handle =
      engine.Submit(std::move(call), std::make_unique<CollectorSink>(submitted.out));
  if (!handle.ok()) return handle.status();
  submitted.handle = *handle;
  return submitted;
}

inline ridge::FillDecision Local() {
  ridge::FillDecision decision;
  decision.local = true;
  decision.reason = "LOCAL";
  return decision;
}
inline ridge::FillDecision ExactOnDecode(int split) {
  ridge::FillDecision decision;
  decision.split = split;
  decision.reason = "REQUESTED";
  return decision;
}
inline ridge::FillDecision ExactOnPrefill() {
  ridge::FillDecision decision;
  decision.late_pass = ridge::LatePassAt::kPrefill;
  decision.reason = "REQUESTED";
  return decision;
}
inline ridge::FillDecision Speed(int split, int tail) {
  ridge::FillDecision decision;
  decision.mode = ridge::Mode::kSpeed;
  decision.split = split;
  decision.tail = tail;
  decision.reason = "REQUESTED";
  return decision;
}
// Of a random prompt on the tiny model, whose attention is flat, most windows are worth their rows.
inline ridge::FillDecision Quality(int split, int tail, float share,
                                   ridge::Selector selector = ridge::Selector::kAttention) {
  ridge::FillDecision decision = Speed(split, tail);
  decision.mode = ridge::Mode::kQuality;
  decision.share = share;
  decision.selector = selector;
  return decision;
}
inline ridge::FillDecision Hidden(ridge::FillDecision decision) {
  decision.wire_form = ridge::WireForm::kHidden;
  return decision;
}

}  // namespace ridgefill::runtime
