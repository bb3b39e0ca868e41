// ridgefill bench prefill: one prompt through the prefill engine, from Submit to the last frame; frames are
// dropped.
#include <memory>

#include "absl/synchronization/notification.h"
#include "engine/base/clock.h"
#include "engine/base/status.h"
#include "engine/runtime/prefill_engine.h"
#include "services/cli/bench.h"

namespace ridgefill::cli {
namespace {

struct Outcome {
  absl::Notification done;
  absl::Status status;
};

class DroppingSink : public runtime::KvSink {
 public:
  explicit DroppingSink(Outcome& outcome) : outcome_(outcome) {}
  bool HasRoom() const override { return true; }
  void Send(runtime::KvFrame) override {}
  void Finish(absl::Status status) override {
    outcome_.status = std::move(status);
    outcome_.done.Notify();
  }
  bool Cancelled() const override { return false; }
  void SetWakeup(std::function<void()>) override {}

 private:
  Outcome& outcome_;
};

absl::StatusOr<absl::Duration> RunOnce(runtime::PrefillEngine& engine, const base::Clock& clock,
                                       const runtime::PrefillCall& call) {
  Outcome outcome;
  std::unique_ptr<runtime::KvSink> sink = std::make_unique<DroppingSink>(outcome);
  const absl::Duration begin = clock.Monotonic();
  RF_RETURN_IF_ERROR(engine.Submit(call, sink));
  outcome.done.WaitForNotification();
  const absl::Duration took = clock.Monotonic() - begin;
  RF_RETURN_IF_ERROR(outcome.status);
  return took;
}

}  // namespace

absl::Status BenchPrefill(const std::string& home, const BenchFlags& flags) {
  RF_ASSIGN_OR_RETURN(const std::vector<ridge::Mode> modes, ParseModes(flags.modes));
  RF_ASSIGN_OR_RETURN(const common::LoadedModel model, LoadForBench(home, flags, /*for_decode=*/false));
  const std::unique_ptr<base::Clock> clock = base::MakeSystemClock();
  runtime::PrefillEngineOptions options;
  options.context_tokens = model.context_tokens;
  options.chunk_tokens = flags.chunk;
  RF_ASSIGN_OR_RETURN(const auto engine, runtime::PrefillEngine::Create(*model.model, model.maps.get(),
                                                                        model.hello, *clock, options));
  for (int64_t length : flags.lengths) {
    runtime::PrefillCall call;
    call.hello = model.hello;
    RF_ASSIGN_OR_RETURN(call.tokens, BenchPrompt(*model.tokenizer, length));
    std::vector<BenchLine> lines;
    std::vector<ridge::FillDecision> decisions;
    for (ridge::Mode mode : modes) {
      RF_ASSIGN_OR_RETURN(const ridge::FillDecision decision, BenchDecision(model, flags, mode, length));
      const auto& capabilities = model.backend->capabilities();
      lines.push_back({"prefill",
                       model.name,
                       std::string(ridge::Name(mode)),
                       decision.split,
                       decision.tail,
                       length,
                       1,
                       {},
                       length,
                       capabilities.threads,
                       capabilities.isa});
      decisions.push_back(decision);
    }
    // Modes take turns, so that a machine whose speed drifts treats them alike; the first round warms up.
    for (int rep = -1; rep < flags.reps; ++rep) {
      for (size_t i = 0; i < lines.size(); ++i) {
        call.decision = decisions[i];
        RF_ASSIGN_OR_RETURN(const absl::Duration took, RunOnce(*engine, *clock, call));
        if (rep >= 0) lines[i].runs.push_back(took);
      }
    }
    for (const BenchLine& line : lines) PrintLine(line);
  }
  return absl::OkStatus();
}

}  // namespace ridgefill::cli
