// ridgefill bench decode: generation alone. `batch` requests are brought to their first token together; the
// clock runs from the last first token to the last token of all, and tokens_per_s counts what was generated
// in between.
#include <algorithm>
#include <memory>

#include "absl/synchronization/blocking_counter.h"
#include "engine/base/clock.h"
#include "engine/base/status.h"
#include "engine/runtime/decode_engine.h"
#include "engine/runtime/prefill_engine.h"
#include "services/cli/bench.h"
#include "services/transport/transport.h"

namespace ridgefill::cli {
namespace {

// Times of one request's tokens; written by the engine's thread, read after `finished` came down.
struct Answer {
  const base::Clock* clock;
  absl::BlockingCounter* finished;
  std::vector<absl::Duration> tokens;
  absl::Status status;
};

class TimingSink : public runtime::TokenSink {
 public:
  explicit TimingSink(Answer& answer) : answer_(answer) {}
  void OnEvent(runtime::DecodeEvent event) override {
    if (std::holds_alternative<runtime::TokenEvent>(event))
      answer_.tokens.push_back(answer_.clock->Monotonic());
    if (const auto* end = std::get_if<runtime::FinishedEvent>(&event)) {
      answer_.status = end->status;
      answer_.finished->DecrementCount();
    }
  }

 private:
  Answer& answer_;
};

struct Span {
  absl::Duration took;
  int64_t tokens = 0;
};

absl::StatusOr<Span> RunOnce(runtime::DecodeEngine& engine, const base::Clock& clock,
                             const runtime::DecodeCall& call, int batch) {
  absl::BlockingCounter finished(batch);
  std::vector<Answer> answers(batch, Answer{&clock, &finished, {}, {}});
  int submitted = 0;
  absl::Status refused;
  for (; submitted < batch && refused.ok(); ++submitted) {
    refused = engine.Submit(call, std::make_unique<TimingSink>(answers[submitted])).status();
  }
  if (!refused.ok()) {
    for (int i = submitted - 1; i < batch; ++i) finished.DecrementCount();
  }
  finished.Wait();
  RF_RETURN_IF_ERROR(refused);
  absl::Duration begin = -absl::InfiniteDuration(), end = -absl::InfiniteDuration();
  for (const Answer& answer : answers) {
    RF_RETURN_IF_ERROR(answer.status);
    begin = std::max(begin, answer.tokens.front());
    end = std::max(end, answer.tokens.back());
  }
  Span span{end - begin, 0};
  for (const Answer& answer : answers) {
    span.tokens += std::count_if(answer.tokens.begin(), answer.tokens.end(),
                                 [&](absl::Duration at) { return at > begin; });
  }
  return span;
}

}  // namespace

absl::Status BenchDecode(const std::string& home, const BenchFlags& flags) {
  RF_ASSIGN_OR_RETURN(const std::vector<ridge::Mode> modes, ParseModes(flags.modes));
  RF_ASSIGN_OR_RETURN(const common::LoadedModel model, LoadForBench(home, flags, /*for_decode=*/true));
  const std::unique_ptr<base::Clock> clock = base::MakeSystemClock();
  runtime::PrefillEngineOptions prefill_options;
  prefill_options.context_tokens = model.context_tokens;
  RF_ASSIGN_OR_RETURN(
      const auto prefill,
      runtime::PrefillEngine::Create(*model.model, model.maps.get(), model.hello, *clock, prefill_options));
  RF_ASSIGN_OR_RETURN(const transport::Transport* local, transport::FindTransport("local"));
  transport::Options transport_options;
  transport_options.local_engine = prefill.get();
  RF_ASSIGN_OR_RETURN(const auto sources, local->connect(transport_options));
  const int most = *std::max_element(flags.batches.begin(), flags.batches.end());
  runtime::DecodeEngineOptions options;
  options.context_tokens = model.context_tokens;
  options.max_running = most;
  options.cache_blocks = most * (model.context_tokens / kernels::kBlockTokens + 1);
  RF_ASSIGN_OR_RETURN(const auto engine, runtime::DecodeEngine::Create(*model.model, model.hello,
                                                                       sources.get(), *clock, options));
  for (int64_t length : flags.lengths) {
    for (int batch : flags.batches) {
      for (ridge::Mode mode : modes) {
        runtime::DecodeCall call;
        RF_ASSIGN_OR_RETURN(call.tokens, BenchPrompt(*model.tokenizer, length));
        RF_ASSIGN_OR_RETURN(call.decision, BenchDecision(model, flags, mode, length));
        call.sampling.temperature = 0;
        call.sampling.ignore_eos = true;
        call.max_tokens = flags.generate;
        const auto& capabilities = model.backend->capabilities();
        BenchLine line{"decode",
                       model.name,
                       std::string(ridge::Name(mode)),
                       call.decision.split,
                       call.decision.tail,
                       length,
                       batch,
                       {},
                       0,
                       capabilities.threads,
                       capabilities.isa};
        for (int rep = -1; rep < flags.reps; ++rep) {
          RF_ASSIGN_OR_RETURN(const Span span, RunOnce(*engine, *clock, call, batch));
          line.tokens = span.tokens;
          if (rep >= 0) line.runs.push_back(span.took);
        }
        PrintLine(line);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace ridgefill::cli
