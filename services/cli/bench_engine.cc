// `ridgefill bench prefill` and `bench decode`: the engines without the services around them.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "engine/base/clock.h"
#include "engine/base/status.h"
#include "engine/ridge/selection.h"
#include "engine/runtime/wakeup.h"
#include "services/cli/bench.h"
#include "services/cli/client.h"
#include "services/common/config.h"
#include "services/common/convert.h"
#include "services/common/loaded_model.h"
#include "services/decode/worker.h"
#include "services/prefill/worker.h"
#include "services/transport/transport.h"

namespace ridgefill::cli {
namespace {

struct Loaded {
  config::v1::ServeConfig config;
  common::LoadedModel model;
};

absl::StatusOr<Loaded> Load(const BenchFlags& flags, const std::string& home) {
  Loaded out;
  out.config = flags.model.ToServeConfig();
  common::FillDefaults(out.config);
  RF_RETURN_IF_ERROR(common::Validate(out.config));
  common::LoadModelOptions options;
  options.home = home;
  options.source = out.config.router().source();
  options.backend = out.config.backend();
  options.context_tokens = out.config.decode().context_tokens();
  options.kv_memory_mb = out.config.decode().kv_memory_mb();
  options.kv_cache_contexts = 2;
  RF_ASSIGN_OR_RETURN(out.model, common::LoadModel(options));
  return out;
}

absl::StatusOr<std::vector<int32_t>> Prompt(const common::LoadedModel& model, int64_t length, uint64_t seed) {
  RF_ASSIGN_OR_RETURN(auto ids, model.tokenizer->Encode(BenchText(static_cast<int>(length), seed)));
  if (static_cast<int64_t>(ids.size()) < length) return absl::InternalError("the text gave too few tokens");
  ids.resize(length);
  return ids;
}

BenchLine LineFor(const common::LoadedModel& model, const std::string& bench,
                  const ridge::FillDecision& decision, int64_t length) {
  BenchLine line;
  line.bench = bench;
  line.model = model.name;
  line.mode = std::string(ridge::Name(decision.mode));
  if (decision.mode == ridge::Mode::kQuality) line.selector = std::string(ridge::Name(decision.selector));
  line.split = decision.split;
  line.tail = decision.tail;
  line.prompt_tokens = length;
  line.threads = model.backend->capabilities().threads;
  line.isa = model.backend->capabilities().isa;
  return line;
}

absl::StatusOr<ridge::FillDecision> PrefillDecision(const common::LoadedModel& model, const std::string& mode,
                                                    const BenchFlags& flags) {
  ridge::FillDecision decision;
  decision.reason = "BENCH";
  if (mode == "EXACT") {
    decision.late_pass = ridge::LatePassAt::kPrefill;
    return decision;
  }
  if (mode != "SPEED" && mode != "QUALITY")
    return absl::InvalidArgumentError("--modes takes EXACT, QUALITY and SPEED, got \"" + mode + "\"");
  if (model.maps.empty()) return absl::FailedPreconditionError(mode + " needs a map set (--maps)");
  decision.mode = mode == "SPEED" ? ridge::Mode::kSpeed : ridge::Mode::kQuality;
  decision.share = ridge::SelectionOptions().share;
  RF_ASSIGN_OR_RETURN(const v1::Selector selector, ParseSelector(flags.selector));
  RF_ASSIGN_OR_RETURN(decision.selector, common::FromProto(selector));
  if (ridge::NeedsProbe(decision)) decision.wire_form = ridge::WireForm::kHidden;
  decision.split = flags.split > 0 ? flags.split : model.maps.front()->manifest().split;
  const ridge::DeviceMaps* maps = ridge::FindSplit(model.map_sets(), decision.split);
  if (maps == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("--split ", decision.split, ": there are map sets of ",
                                                   ridge::SplitNames(model.map_sets())));
  }
  decision.tail = flags.tail > 0 ? flags.tail : maps->manifest().tail_default;
  return decision;
}

// One prompt; frames are taken as they come and dropped.
absl::StatusOr<double> PrefillOnce(runtime::KvSource& source, runtime::PrefillCall call) {
  // Shared: the engine's thread may still be in the call that wakes when this one has seen the end.
  const auto wakeup = std::make_shared<runtime::Wakeup>();
  const absl::Time start = absl::Now();
  const auto transfer = source.Open(std::move(call), [wakeup] { wakeup->Notify(); });
  while (true) {
    while (transfer->TryNext().has_value()) {
    }
    if (auto ended = transfer->Ended()) {
      RF_RETURN_IF_ERROR(*ended);
      return absl::ToDoubleMilliseconds(absl::Now() - start);
    }
    wakeup->Wait(runtime::kIdleWait);
  }
}

absl::Status PrefillLength(const BenchFlags& flags, const common::LoadedModel& model,
                           runtime::KvSource& source, int64_t length) {
  std::map<std::string, BenchLine> lines;
  for (int rep = -1; rep < flags.reps; ++rep) {  // rep -1 warms up
    for (const std::string& mode : flags.modes) {
      runtime::PrefillCall call;
      call.hello = model.hello;
      RF_ASSIGN_OR_RETURN(call.tokens, Prompt(model, length, rep + 1));
      RF_ASSIGN_OR_RETURN(call.decision, PrefillDecision(model, mode, flags));
      BenchLine& line =
          lines.try_emplace(mode, LineFor(model, "prefill", call.decision, length)).first->second;
      RF_ASSIGN_OR_RETURN(const double ms, PrefillOnce(source, std::move(call)));
      line.tokens = static_cast<double>(length);
      if (rep >= 0) line.ms.push_back(ms);
    }
  }
  for (const std::string& mode : flags.modes) Print(lines.at(mode));
  return absl::OkStatus();
}

// When the tokens of one request came; written by the engine's thread, read when all requests are done.
struct Answered {
  std::vector<absl::Time> tokens;
  absl::Status status;
};

struct Batch {
  explicit Batch(int size) : done(size), answers(size) {}
  absl::BlockingCounter done;
  std::vector<Answered> answers;
};

class TimingSink : public runtime::TokenSink {
 public:
  TimingSink(std::shared_ptr<Batch> batch, int index) : batch_(std::move(batch)), index_(index) {}
  void OnEvent(runtime::DecodeEvent event) override {
    Answered& answered = batch_->answers[index_];
    if (std::holds_alternative<runtime::TokenEvent>(event)) answered.tokens.push_back(absl::Now());
    const auto* finished = std::get_if<runtime::FinishedEvent>(&event);
    if (finished == nullptr) return;
    answered.status = finished->status;
    batch_->done.DecrementCount();
  }

 private:
  std::shared_ptr<Batch> batch_;
  const int index_;
};

// Milliseconds from the last request's first token to the last token of all, and what was generated in
// between: generation alone, with every request running.
struct Generation {
  double ms = 0;
  int64_t tokens = 0;
};

absl::StatusOr<Generation> Measure(const Batch& batch) {
  absl::Time begin = absl::InfinitePast(), end = absl::InfinitePast();
  for (const Answered& answered : batch.answers) {
    RF_RETURN_IF_ERROR(answered.status);
    begin = std::max(begin, answered.tokens.front());
    end = std::max(end, answered.tokens.back());
  }
  Generation out{absl::ToDoubleMilliseconds(end - begin), 0};
  for (const Answered& answered : batch.answers) {
    out.tokens += std::count_if(answered.tokens.begin(), answered.tokens.end(),
                                [begin](absl::Time at) { return at > begin; });
  }
  return out;
}

absl::StatusOr<Generation> DecodeOnce(runtime::DecodeEngine& engine, const runtime::DecodeCall& call,
                                      int size) {
  const auto batch = std::make_shared<Batch>(size);
  for (int i = 0; i < size; ++i) {
    RF_RETURN_IF_ERROR(engine.Submit(call, std::make_unique<TimingSink>(batch, i)).status());
  }
  batch->done.Wait();
  return Measure(*batch);
}

absl::Status DecodeLength(const BenchFlags& flags, const common::LoadedModel& model,
                          runtime::DecodeEngine& engine, int64_t length, int batch) {
  runtime::DecodeCall call;
  call.request_id = "bench";
  call.prefill_address = "local";
  RF_ASSIGN_OR_RETURN(call.tokens, Prompt(model, length, 1));
  call.sampling.temperature = 0;
  call.sampling.ignore_eos = true;
  call.max_tokens = flags.tokens;
  std::map<std::string, BenchLine> lines;
  for (int rep = -1; rep < flags.reps; ++rep) {  // rep -1 warms up
    for (const std::string& mode : flags.modes) {
      RF_ASSIGN_OR_RETURN(call.decision, PrefillDecision(model, mode, flags));
      BenchLine& line =
          lines.try_emplace(mode, LineFor(model, "decode", call.decision, length)).first->second;
      RF_ASSIGN_OR_RETURN(const Generation generation, DecodeOnce(engine, call, batch));
      line.batch = batch;
      line.tokens = static_cast<double>(generation.tokens);
      if (rep >= 0) line.ms.push_back(generation.ms);
    }
  }
  for (const std::string& mode : flags.modes) Print(lines.at(mode));
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchPrefill(const BenchFlags& flags, const Environment& environment) {
  RF_ASSIGN_OR_RETURN(const Loaded loaded, Load(flags, environment.home));
  const auto clock = base::MakeSystemClock();
  RF_ASSIGN_OR_RETURN(const auto worker,
                      prefill::PrefillWorker::Create(loaded.model, loaded.config.prefill(), *clock));
  RF_ASSIGN_OR_RETURN(const transport::Transport* local, transport::FindTransport("local"));
  transport::Options options;
  options.local_engine = &worker->engine();
  RF_ASSIGN_OR_RETURN(const auto directory, local->connect(options));
  RF_ASSIGN_OR_RETURN(const auto source, directory->Find("local"));
  for (const int64_t length : flags.lengths) {
    RF_RETURN_IF_ERROR(PrefillLength(flags, loaded.model, *source, length));
  }
  return absl::OkStatus();
}

absl::Status BenchDecode(const BenchFlags& flags, const Environment& environment) {
  if (flags.tokens < 2) return absl::InvalidArgumentError("--tokens must be at least 2");
  const int most = *std::max_element(flags.batches.begin(), flags.batches.end());
  if (*std::min_element(flags.batches.begin(), flags.batches.end()) < 1) {
    return absl::InvalidArgumentError("--batches must be at least 1");
  }
  RF_ASSIGN_OR_RETURN(Loaded loaded, Load(flags, environment.home));
  loaded.config.mutable_decode()->set_max_running(std::max(most, loaded.config.decode().max_running()));
  const auto clock = base::MakeSystemClock();
  RF_ASSIGN_OR_RETURN(const auto prefill,
                      prefill::PrefillWorker::Create(loaded.model, loaded.config.prefill(), *clock));
  RF_ASSIGN_OR_RETURN(const auto decode,
                      decode::DecodeWorker::Create(loaded.model, common::LocalDecode(loaded.config), *clock,
                                                   &prefill->engine()));
  for (const int64_t length : flags.lengths) {
    for (const int batch : flags.batches) {
      RF_RETURN_IF_ERROR(DecodeLength(flags, loaded.model, decode->engine(), length, batch));
    }
  }
  return absl::OkStatus();
}

}  // namespace ridgefill::cli
