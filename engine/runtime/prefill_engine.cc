#include "engine/runtime/prefill_engine.h"

#include <algorithm>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/runtime/decision.h"
#include "engine/runtime/prefill_pass.h"
#include "engine/runtime/wakeup.h"

namespace ridgefill::runtime {
namespace {

absl::Status Refuse(absl::StatusCode code, absl::string_view reason, absl::string_view message) {
  return base::Error(code, reason, message);
}

struct Request {
  PrefillCall call;
  std::unique_ptr<KvSink> sink;
  PrefillRun run;
  absl::Duration submitted;                     // all times are Clock::Monotonic()
  std::optional<absl::Duration> started;        // of the first chunk
  std::optional<absl::Duration> blocked_since;  // the sink has been full since then
  absl::Duration blocked;                       // waited for the sink in all

  bool holds_blocks() const { return !run.blocks.blocks.empty(); }
};

class PrefillEngineImpl : public PrefillEngine {
 public:
  PrefillEngineImpl(const model::Model& model, ridge::MapSets maps, const Hello& hello,
                    const base::Clock& clock, const PrefillEngineOptions& options,
                    std::unique_ptr<PrefillPass> pass)
      : model_(model),
        maps_(maps.begin(), maps.end()),
        hello_(hello),
        clock_(clock),
        options_(options),
        pass_(std::move(pass)),
        pool_(options.cache_blocks),
        last_round_(clock.Monotonic()) {
    Publish();
    thread_ = std::thread([this] { Loop(); });
  }

  ~PrefillEngineImpl() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    wakeup_->Notify();
    thread_.join();
  }

  absl::Status Submit(PrefillCall call, std::unique_ptr<KvSink>& sink) override;
  bool Drain(absl::Time deadline) override;
  PrefillStats Stats() const override;

 private:
  absl::Status Check(const PrefillCall& call) const;
  absl::Status CheckModelHas(const ridge::FillDecision& decision) const;

  void Loop();
  bool Step();
  bool TakeIncoming();  // false when the engine is stopping
  void DropDead();
  Request* Pick();
  bool MayRun(Request& request);
  void RunChunk(Request& request);
  void Seal(Request& request);
  void Finish(Request& request, const absl::Status& status);
  void Count(const absl::Status& status);
  void Publish();

  const model::Model& model_;
  const std::vector<const ridge::DeviceMaps*> maps_;
  const Hello hello_;
  const base::Clock& clock_;
  const PrefillEngineOptions options_;
  const std::shared_ptr<Wakeup> wakeup_ = std::make_shared<Wakeup>();

  // The engine's thread only.
  const std::unique_ptr<PrefillPass> pass_;
  cache::BlockPool pool_;
  std::list<Request> requests_;  // in order of arrival
  PrefillStats totals_;

  mutable absl::Mutex mutex_;
  std::list<Request> incoming_ ABSL_GUARDED_BY(mutex_);
  PrefillStats published_ ABSL_GUARDED_BY(mutex_);
  absl::Duration last_round_ ABSL_GUARDED_BY(mutex_);
  int active_ ABSL_GUARDED_BY(mutex_) = 0;  // submitted, sink not yet finished
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

absl::Status PrefillEngineImpl::Check(const PrefillCall& call) const {
  const bool filled = call.decision.mode != ridge::Mode::kExact;
  const int split = call.decision.split;
  // The worker that does not fill needs no maps of its own; if it has some of this split, they must be the
  // other's.
  const bool compare_maps = filled && !MapsDigest(call.hello, split).empty() &&
                            !(FillsOnDecode(call.decision) && MapsDigest(hello_, split).empty());
  RF_RETURN_IF_ERROR(CheckHello(hello_, call.hello, compare_maps ? split : 0));
  RF_RETURN_IF_ERROR(CheckDecision(call.decision, model_.config().layers));
  if (call.decision.local) {
    return Refuse(absl::StatusCode::kInvalidArgument, "DECISION_LOCAL",
                  "a local prefill needs no prefill worker");
  }
  RF_RETURN_IF_ERROR(CheckModelHas(call.decision));
  const int64_t tokens = static_cast<int64_t>(call.tokens.size());
  if (tokens == 0)
    return base::FieldError("tokens", "PROMPT_EMPTY", "the prompt is empty; allowed is 1 token or more");
  if (tokens > options_.context_tokens) {
    return base::FieldError("tokens", "CONTEXT_LENGTH",
                            absl::StrCat("the prompt has ", tokens, " tokens; this worker takes at most ",
                                         options_.context_tokens));
  }
  return CheckTokenIds(call.tokens, model_.config().vocab);
}

absl::Status PrefillEngineImpl::CheckModelHas(const ridge::FillDecision& decision) const {
  const bool fills = decision.mode != ridge::Mode::kExact && !FillsOnDecode(decision);
  if (fills && maps_.empty()) {
    return Refuse(
        absl::StatusCode::kFailedPrecondition, "NO_MAPS",
        absl::StrCat("mode ", ridge::Name(decision.mode), " needs a map set and this worker has none"));
  }
  const ridge::DeviceMaps* maps = ridge::FindSplit(maps_, decision.split);
  if (fills && maps == nullptr) {
    return Refuse(absl::StatusCode::kFailedPrecondition, "MAPS_OTHER_SPLIT",
                  absl::StrCat("split ", decision.split, ": this worker's map sets were fitted for ",
                               ridge::SplitNames(maps_)));
  }
  // What an unfolded map gives goes through the late layer's own projections.
  const bool all = decision.late_pass == ridge::LatePassAt::kPrefill || (fills && !maps->manifest().folded);
  const int needed = all ? model_.config().layers : decision.split + (fills ? 1 : 0);
  if (needed > model_.loaded_layers()) {
    return Refuse(absl::StatusCode::kFailedPrecondition, "LAYERS_NOT_LOADED",
                  absl::StrCat("this request needs layers [0, ", needed, "); this worker holds [0, ",
                               model_.loaded_layers(), ")"));
  }
  return absl::OkStatus();
}

absl::Status PrefillEngineImpl::Submit(PrefillCall call, std::unique_ptr<KvSink>& sink) {
  RF_RETURN_IF_ERROR(Check(call));
  sink->SetWakeup([wakeup = wakeup_] { wakeup->Notify(); });
  absl::MutexLock lock(&mutex_);
  if (draining_ || stopping_) {
    return Refuse(absl::StatusCode::kUnavailable, "DRAINING", "this prefill worker is shutting down");
  }
  const int64_t queued = published_.queued + static_cast<int64_t>(incoming_.size());
  if (queued >= options_.max_queued) {
    return Refuse(absl::StatusCode::kResourceExhausted, "PREFILL_QUEUE_FULL",
                  absl::StrCat(queued, " requests wait for this prefill worker already; max_queued is ",
                               options_.max_queued));
  }
  Request& request = incoming_.emplace_back();
  request.call = std::move(call);
  request.sink = std::move(sink);
  request.submitted = clock_.Monotonic();
  ++active_;
  wakeup_->Notify();
  return absl::OkStatus();
}

bool PrefillEngineImpl::Drain(absl::Time deadline) {
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return active_ == 0; };
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  while (active_ > 0) {
    const absl::Duration left = deadline - clock_.Now();
    if (left <= absl::ZeroDuration()) return false;
    mutex_.AwaitWithTimeout(absl::Condition(&idle), std::min(left, kIdleWait));
  }
  return true;
}

PrefillStats PrefillEngineImpl::Stats() const {
  absl::MutexLock lock(&mutex_);
  PrefillStats stats = published_;
  stats.queued += static_cast<int>(incoming_.size());
  for (const Request& request : incoming_)
    stats.queued_tokens += static_cast<int64_t>(request.call.tokens.size());
  stats.last_step_age = clock_.Monotonic() - last_round_;
  return stats;
}

void PrefillEngineImpl::Loop() {
  while (TakeIncoming()) {
    if (!Step()) wakeup_->Wait(kIdleWait);
  }
  const absl::Status status = Refuse(absl::StatusCode::kUnavailable, "SHUTDOWN",
                                     "the prefill worker stopped before the prompt was done");
  while (!requests_.empty()) Finish(requests_.front(), status);
}

bool PrefillEngineImpl::TakeIncoming() {
  const size_t known = requests_.size();
  bool stopping = false;
  {
    absl::MutexLock lock(&mutex_);
    // Counted in the same breath, so that no request is missing from the queue for a moment.
    for (const Request& request : incoming_) {
      ++published_.queued;
      published_.queued_tokens += static_cast<int64_t>(request.call.tokens.size());
    }
    requests_.splice(requests_.end(), incoming_);
    last_round_ = clock_.Monotonic();
    stopping = stopping_;
  }
  for (auto it = std::next(requests_.begin(), static_cast<int64_t>(known)); it != requests_.end(); ++it) {
    it->run.call = &it->call;
    it->run.sink = it->sink.get();
    it->run.work = SplitWork(it->call.decision, model_.config().layers, it->run.tokens());
    it->run.frames = pass_->NewFrameWriter(*it->sink);
  }
  return !stopping;
}

// One chunk of one request; false when there was nothing to do.
bool PrefillEngineImpl::Step() {
  DropDead();
  Request* request = Pick();
  if (request != nullptr) RunChunk(*request);
  RF_CHECK(pool_.counts().conserved());
  Publish();
  return request != nullptr;
}

// Cancelled requests and those past their deadline.
void PrefillEngineImpl::DropDead() {
  const absl::Time now = clock_.Now();
  for (auto it = requests_.begin(); it != requests_.end();) {
    Request& request = *it++;
    if (request.sink->Cancelled()) {
      Finish(request, Refuse(absl::StatusCode::kCancelled, "CANCELLED", "cancelled by the decode worker"));
    } else if (now > request.call.deadline) {
      Finish(request, Refuse(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED",
                             "deadline passed during prefill"));
    }
  }
}

// The first in order of arrival that can run. Blocks go strictly in order: nobody overtakes one that waits
// for them.
Request* PrefillEngineImpl::Pick() {
  bool blocks_left = true;
  for (Request& request : requests_) {
    if (!request.holds_blocks()) {
      blocks_left = blocks_left && pool_.Reserve(request.run.tokens(), request.run.blocks).ok();
      if (!blocks_left) continue;
    }
    if (MayRun(request)) return &request;
  }
  return nullptr;
}

bool PrefillEngineImpl::MayRun(Request& request) {
  const absl::Duration now = clock_.Monotonic();
  if (!request.sink->HasRoom()) {
    if (!request.blocked_since) request.blocked_since = now;
    return false;
  }
  if (request.blocked_since && request.started) request.blocked += now - *request.blocked_since;
  request.blocked_since.reset();
  return true;
}

void PrefillEngineImpl::RunChunk(Request& request) {
  const absl::Duration begin = clock_.Monotonic();
  if (!request.started) request.started = begin;
  RF_CHECK(pool_.Owns(request.run.blocks));
  const int64_t frames = request.run.frames->frames(), bytes = request.run.frames->bytes();
  const absl::Status status = pass_->RunChunk(request.run);
  totals_.frames += request.run.frames->frames() - frames;
  totals_.frame_bytes += request.run.frames->bytes() - bytes;
  totals_.busy += clock_.Monotonic() - begin;
  if (!status.ok()) {
    Finish(request, status);
  } else if (request.run.finished()) {
    Seal(request);
  }
}

void PrefillEngineImpl::Seal(Request& request) {
  PlanBody plan;
  if (FillsOnDecode(request.call.decision)) {
    plan.plan.tokens = request.run.tokens();
    plan.plan.tail_begin = request.run.work.tail_begin;
    totals_.hidden_tokens += plan.plan.tokens;
  } else {
    plan.plan = ridge::MakeFillPlan(request.call.decision, request.run.tokens(), request.run.outliers,
                                    request.run.selected);
    totals_.filled_tokens += plan.plan.filled_count();
    totals_.exact_tokens += plan.plan.exact_count();
    totals_.selected_tokens += static_cast<int64_t>(plan.plan.selected.size());
  }
  plan.batch_invariant = model_.backend().capabilities().batch_invariant;
  plan.queue_time = *request.started - request.submitted;
  // Waiting for a full sink is the transfer's time.
  plan.compute_time = clock_.Monotonic() - *request.started - request.blocked;
  totals_.prompt_tokens += plan.plan.tokens;
  totals_.frames += 2;
  request.run.frames->Seal(std::move(plan));
  Finish(request, absl::OkStatus());
}

void PrefillEngineImpl::Finish(Request& request, const absl::Status& status) {
  pool_.Release(request.run.blocks);
  const auto it =
      std::find_if(requests_.begin(), requests_.end(), [&](const Request& r) { return &r == &request; });
  std::list<Request> finished;
  finished.splice(finished.end(), requests_, it);
  Count(status);
  Publish();  // whoever sees the end sees the blocks free
  request.sink->Finish(status);
  finished.clear();
  absl::MutexLock lock(&mutex_);
  --active_;
}

void PrefillEngineImpl::Count(const absl::Status& status) {
  if (status.ok()) {
    ++totals_.requests_ok;
  } else if (absl::IsCancelled(status)) {
    ++totals_.requests_cancelled;
  } else {
    ++totals_.requests_failed;
  }
}

void PrefillEngineImpl::Publish() {
  PrefillStats stats = totals_;
  for (const Request& request : requests_) {
    ++(request.started ? stats.running : stats.queued);
    stats.queued_tokens += request.run.tokens() - request.run.done;
  }
  const cache::BlockCounts blocks = pool_.counts();
  stats.blocks_total = blocks.total;
  stats.blocks_free = blocks.free;
  stats.blocks_used = blocks.used;
  absl::MutexLock lock(&mutex_);
  published_ = stats;
}

absl::Status CheckOptions(const PrefillEngineOptions& options) {
  if (options.chunk_tokens < 1 || options.chunk_tokens % kernels::kBlockTokens != 0) {
    return base::FieldError("chunk_tokens", "CHUNK_TOKENS",
                            absl::StrCat("chunk_tokens must be a multiple of ", kernels::kBlockTokens,
                                         ", got ", options.chunk_tokens));
  }
  if (options.context_tokens < 1 || options.max_queued < 1 || options.frame_bytes < 1) {
    return Refuse(absl::StatusCode::kInvalidArgument, "PREFILL_OPTIONS",
                  "context_tokens, max_queued and frame_bytes must be at least 1");
  }
  const int64_t needed = cache::BlocksFor(options.context_tokens);
  if (options.cache_blocks >= needed) return absl::OkStatus();
  return Refuse(
      absl::StatusCode::kInvalidArgument, "CACHE_TOO_SMALL",
      absl::StrCat("one prompt of ", options.context_tokens, " tokens needs ", needed, " KV blocks of ",
                   kernels::kBlockTokens, " tokens; the cache has ", options.cache_blocks));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrefillEngine>> PrefillEngine::Create(const model::Model& model,
                                                                     ridge::MapSets maps, const Hello& hello,
                                                                     const base::Clock& clock,
                                                                     const PrefillEngineOptions& requested) {
  PrefillEngineOptions options = requested;
  if (options.cache_blocks == 0) options.cache_blocks = 2 * cache::BlocksFor(options.context_tokens);
  RF_RETURN_IF_ERROR(CheckOptions(options));
  RF_ASSIGN_OR_RETURN(
      auto pass,
      PrefillPass::Create(model, maps, {options.chunk_tokens, options.cache_blocks, options.frame_bytes}));
  return std::make_unique<PrefillEngineImpl>(model, maps, hello, clock, options, std::move(pass));
}

}  // namespace ridgefill::runtime
