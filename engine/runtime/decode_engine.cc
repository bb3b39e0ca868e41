#include "engine/runtime/decode_engine.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/check.h"
#include "engine/base/rng.h"
#include "engine/base/status.h"
#include "engine/runtime/decode_pass.h"
#include "engine/runtime/decode_request.h"
#include "engine/runtime/wakeup.h"
#include "engine/scheduler/scheduler.h"

namespace ridgefill::runtime {
namespace {

// Frames taken from one transfer in one step: bounds the step when many arrive at once.
constexpr int kFramesPerStep = 16;

class DecodeEngineImpl : public DecodeEngine {
 public:
  DecodeEngineImpl(const model::Model& model, ridge::MapSets maps, const Hello& hello,
                   KvSourceDirectory* sources, const base::Clock& clock, const DecodeEngineOptions& options,
                   std::unique_ptr<DecodePass> pass)
      : model_(model),
        maps_(maps.begin(), maps.end()),
        hello_(hello),
        sources_(sources),
        clock_(clock),
        options_(options),
        pass_(std::move(pass)),
        pool_(options.cache_blocks),
        last_round_(clock.Monotonic()) {
    Publish();
    thread_ = std::thread([this] { Loop(); });
  }

  ~DecodeEngineImpl() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    wakeup_->Notify();
    thread_.join();
  }

  absl::StatusOr<uint64_t> Submit(DecodeCall call, std::unique_ptr<TokenSink> sink) override;
  void Cancel(uint64_t handle) override;
  bool Drain(absl::Time deadline) override;
  DecodeStats Stats() const override;

 private:
  void Loop();
  bool TakeIncoming();  // false when the engine is stopping
  bool Step();

  // The parts of a step. Each returns true when it moved something.
  void DropDead();
  bool Receive();
  void Admit(DecodeRequest& request);
  void OpenTransfer(DecodeRequest& request);
  void RunDecode(const std::vector<scheduler::RequestId>& ids);
  void RunPiece(const scheduler::PromptPiece& piece);

  absl::Status Piece(DecodeRequest& request, int64_t rows);
  absl::Status FillPiece(DecodeRequest& request, int64_t rows);
  absl::Status CollectPromptLogprobs(DecodeRequest& request, int64_t rows);
  absl::Status FirstToken(DecodeRequest& request, int64_t piece_rows);
  void Emit(DecodeRequest& request, sampling::SampleResult sample);
  scheduler::SchedulerState SchedulerView() const;
  void Finish(DecodeRequest& request, const absl::Status& status, FinishReason reason = FinishReason::kStop);
  void Count(RequestState state, const absl::Status& status);
  void LeaveQueue();
  void CheckConserved() const;
  void Publish();

  const model::Model& model_;
  const std::vector<const ridge::DeviceMaps*> maps_;
  const Hello hello_;
  KvSourceDirectory* const sources_;
  const base::Clock& clock_;
  const DecodeEngineOptions options_;
  const std::shared_ptr<Wakeup> wakeup_ = std::make_shared<Wakeup>();

  // The engine's thread only.
  const std::unique_ptr<DecodePass> pass_;
  cache::BlockPool pool_;
  std::map<uint64_t, std::unique_ptr<DecodeRequest>> requests_;  // by handle: in order of arrival
  DecodeStats totals_;

  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<DecodeRequest>> incoming_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> cancels_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_handle_ ABSL_GUARDED_BY(mutex_) = 1;
  int queued_ ABSL_GUARDED_BY(mutex_) = 0;        // submitted, no blocks yet
  int active_ ABSL_GUARDED_BY(mutex_) = 0;        // submitted, FinishedEvent not yet delivered
  int64_t rejected_ ABSL_GUARDED_BY(mutex_) = 0;  // refused by Submit
  DecodeStats published_ ABSL_GUARDED_BY(mutex_);
  absl::Duration last_round_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

absl::StatusOr<uint64_t> DecodeEngineImpl::Submit(DecodeCall call, std::unique_ptr<TokenSink> sink) {
  RF_RETURN_IF_ERROR(CheckCall(call, {options_.context_tokens, model_.config().layers, model_.config().vocab,
                                      maps_, sources_ != nullptr}));
  auto request = std::make_unique<DecodeRequest>();
  request->work = SplitWork(call.decision, model_.config().layers, static_cast<int64_t>(call.tokens.size()));
  request->call = std::move(call);
  request->sink = std::move(sink);
  absl::MutexLock lock(&mutex_);
  if (draining_ || stopping_) {
    return base::Error(absl::StatusCode::kUnavailable, "DRAINING", "this decode worker is shutting down");
  }
  if (queued_ >= options_.max_queued) {
    ++rejected_;
    return base::Error(absl::StatusCode::kResourceExhausted, "DECODE_QUEUE_FULL",
                       absl::StrCat(queued_, " requests wait for this decode worker already; max_queued is ",
                                    options_.max_queued));
  }
  const uint64_t handle = next_handle_++;
  request->handle = handle;
  request->times.submitted = clock_.Monotonic();
  incoming_.push_back(std::move(request));
  ++queued_;
  ++active_;
  wakeup_->Notify();
  return handle;
}

void DecodeEngineImpl::Cancel(uint64_t handle) {
  {
    absl::MutexLock lock(&mutex_);
    cancels_.push_back(handle);
  }
  wakeup_->Notify();
}

bool DecodeEngineImpl::Drain(absl::Time deadline) {
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

DecodeStats DecodeEngineImpl::Stats() const {
  absl::MutexLock lock(&mutex_);
  DecodeStats stats = published_;
  stats.queued = queued_;
  stats.requests_rejected += rejected_;
  stats.last_step_age = clock_.Monotonic() - last_round_;
  return stats;
}

void DecodeEngineImpl::Loop() {
  while (TakeIncoming()) {
    if (!Step()) wakeup_->Wait(kIdleWait);
  }
  const absl::Status status = base::Error(absl::StatusCode::kUnavailable, "SHUTDOWN",
                                          "the decode worker stopped before the answer was complete");
  while (!requests_.empty()) Finish(*requests_.begin()->second, status);
}

bool DecodeEngineImpl::TakeIncoming() {
  std::vector<std::unique_ptr<DecodeRequest>> incoming;
  std::vector<uint64_t> cancels;
  bool stopping = false;
  {
    absl::MutexLock lock(&mutex_);
    incoming.swap(incoming_);
    cancels.swap(cancels_);
    last_round_ = clock_.Monotonic();
    stopping = stopping_;
  }
  for (auto& request : incoming) {
    const uint64_t handle = request->handle;
    requests_.emplace(handle, std::move(request));
  }
  const absl::Status cancelled =
      base::Error(absl::StatusCode::kCancelled, "CANCELLED", "the request was cancelled");
  for (uint64_t handle : cancels) {
    const auto it = requests_.find(handle);
    if (it != requests_.end()) Finish(*it->second, cancelled);
  }
  return !stopping;
}

bool DecodeEngineImpl::Step() {
  DropDead();
  const bool received = Receive();
  const scheduler::StepPlan plan = scheduler::Decide(SchedulerView());
  for (scheduler::RequestId id : plan.admit) Admit(*requests_.at(id));
  if (!plan.decode.empty()) RunDecode(plan.decode);
  if (plan.piece) RunPiece(*plan.piece);
  CheckConserved();
  Publish();
  return received || !plan.admit.empty() || !plan.decode.empty() || plan.piece.has_value();
}

// Requests past their deadline, and queued ones that waited too long for blocks.
void DecodeEngineImpl::DropDead() {
  const absl::Time now = clock_.Now();
  const absl::Duration at = clock_.Monotonic();
  for (auto it = requests_.begin(); it != requests_.end();) {
    DecodeRequest& request = *(it++)->second;
    if (now > request.call.deadline) {
      Finish(request, base::Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED",
                                  "the deadline has passed"));
    } else if (request.state == RequestState::kQueued &&
               at - request.times.submitted > options_.queue_timeout) {
      Finish(request, base::Error(absl::StatusCode::kResourceExhausted, "DECODE_QUEUE_TIMEOUT",
                                  absl::StrCat("no KV blocks became free within ",
                                               absl::FormatDuration(options_.queue_timeout))));
    }
  }
}

bool DecodeEngineImpl::Receive() {
  bool moved = false;
  for (auto it = requests_.begin(); it != requests_.end();) {
    DecodeRequest& request = *(it++)->second;
    if (request.state != RequestState::kReceiving) continue;
    RF_CHECK(pool_.Owns(request.blocks));
    const int64_t bytes = request.intake->bytes();
    const absl::StatusOr<int> frames = request.intake->Poll(*pass_, request.blocks, kFramesPerStep);
    if (!frames.ok()) {
      Finish(request, frames.status());
      continue;
    }
    totals_.transfer_frames += *frames;
    totals_.transfer_bytes += request.intake->bytes() - bytes;
    moved = moved || *frames > 0;
    if (!request.intake->sealed()) continue;
    request.times.received = clock_.Monotonic();
    ++(FillsOnDecode(request.call.decision) ? totals_.transfers_hidden : totals_.transfers_kv);
    request.Received(model_.config().layers);
  }
  return moved;
}

scheduler::SchedulerState DecodeEngineImpl::SchedulerView() const {
  scheduler::SchedulerState state;
  for (const auto& [id, request] : requests_) {
    switch (request->state) {
      case RequestState::kQueued:
        state.queued.push_back({id, cache::BlocksFor(request->cache_tokens())});
        continue;
      case RequestState::kReceiving:
        break;
      case RequestState::kFilling:
        state.prompts.push_back({id, request->fill->left()});
        break;
      case RequestState::kFinishing:
        state.prompts.push_back({id, request->late_left()});
        break;
      case RequestState::kRunning:
        state.running.push_back(id);
        break;
    }
    ++state.admitted;
  }
  state.blocks_free = pool_.counts().free;
  state.max_admitted = options_.max_running;
  state.piece_rows = options_.piece_tokens;
  return state;
}

void DecodeEngineImpl::Admit(DecodeRequest& request) {
  RF_CHECK(pool_.Reserve(request.cache_tokens(), request.blocks).ok());
  LeaveQueue();
  request.batch_invariant = model_.backend().capabilities().batch_invariant;
  request.times.admitted = clock_.Monotonic();
  if (!request.call.decision.local) {
    request.state = RequestState::kReceiving;
    OpenTransfer(request);
    return;
  }
  request.BeginLatePass(ridge::MakeFillPlan(request.call.decision, request.prompt_tokens(), {}, {}),
                        model_.config().layers);
}

void DecodeEngineImpl::OpenTransfer(DecodeRequest& request) {
  const absl::StatusOr<std::shared_ptr<KvSource>> source = sources_->Find(request.call.prefill_address);
  if (!source.ok()) {
    Finish(request, source.status());
    return;
  }
  PrefillCall call;
  call.id = {base::EntropySeed(), base::EntropySeed()};
  call.hello = hello_;
  call.tokens = request.call.tokens;
  call.decision = request.call.decision;
  call.deadline = request.call.deadline;
  call.trace_parent = request.call.trace_parent;
  const TransferChecker::Expectation expected{call.decision, request.prompt_tokens(), model_.config().layers,
                                              model_.config().hidden, pass_->cache().spec().token_bytes()};
  auto transfer = (*source)->Open(std::move(call), [wakeup = wakeup_] { wakeup->Notify(); });
  request.intake = std::make_unique<TransferIntake>(std::move(transfer), expected);
}

void DecodeEngineImpl::RunDecode(const std::vector<scheduler::RequestId>& ids) {
  std::vector<DecodeRow> rows;
  rows.reserve(ids.size());
  for (scheduler::RequestId id : ids) rows.push_back(requests_.at(id)->NextRow());
  const absl::StatusOr<absl::Span<float>> logits = pass_->Decode(rows);
  ++totals_.steps;
  totals_.decode_rows += static_cast<int64_t>(rows.size());
  const int64_t vocab = model_.config().vocab;
  for (size_t i = 0; i < ids.size(); ++i) {
    DecodeRequest& request = *requests_.at(ids[i]);
    if (!logits.ok()) {
      Finish(request, logits.status());
      continue;
    }
    absl::StatusOr<sampling::SampleResult> sample =
        request.sampler->Sample(logits->subspan(static_cast<int64_t>(i) * vocab, vocab));
    if (sample.ok()) {
      Emit(request, *std::move(sample));
    } else {
      Finish(request, sample.status());
    }
  }
}

void DecodeEngineImpl::RunPiece(const scheduler::PromptPiece& piece) {
  DecodeRequest& request = *requests_.at(piece.id);
  const bool filling = request.state == RequestState::kFilling;
  const absl::Status status = filling ? FillPiece(request, piece.rows) : Piece(request, piece.rows);
  if (!status.ok()) Finish(request, status);
}

absl::Status DecodeEngineImpl::FillPiece(DecodeRequest& request, int64_t rows) {
  RF_CHECK(pool_.Owns(request.blocks));
  BulkFill& fill = *request.fill;
  const int64_t filled = fill.filled_rows(), probed = fill.probed_rows();
  absl::Status status = fill.Step(*pass_, rows);
  totals_.fill_rows += fill.filled_rows() - filled;
  totals_.probe_rows += fill.probed_rows() - probed;
  if (status.ok() && fill.left() == 0) request.BeginLatePass(fill.plan(), model_.config().layers);
  return status;
}

absl::Status DecodeEngineImpl::Piece(DecodeRequest& request, int64_t rows) {
  if (request.intake == nullptr && request.late_done == 0) request.times.received = clock_.Monotonic();
  RF_CHECK(pool_.Owns(request.blocks));
  RF_RETURN_IF_ERROR(pass_->RunPiece(request.NextPiece(rows)));
  totals_.late_pass_rows += rows;
  if (request.call.prompt_logprobs) RF_RETURN_IF_ERROR(CollectPromptLogprobs(request, rows));
  request.late_done += rows;
  return request.late_left() == 0 ? FirstToken(request, rows) : absl::OkStatus();
}

// Of the piece that just ran; all rows are exact, so row i of late_rows is position i.
absl::Status DecodeEngineImpl::CollectPromptLogprobs(DecodeRequest& request, int64_t rows) {
  const int64_t vocab = model_.config().vocab;
  const int64_t wanted = std::min(rows, request.prompt_tokens() - 1 - request.late_done);
  for (int64_t done = 0; done < wanted; done += pass_->max_logit_rows()) {
    const int64_t count = std::min(pass_->max_logit_rows(), wanted - done);
    RF_ASSIGN_OR_RETURN(const absl::Span<float> logits, pass_->PieceLogits(done, count));
    for (int64_t i = 0; i < count; ++i) {
      const int32_t next = request.call.tokens[request.late_done + done + i + 1];
      RF_ASSIGN_OR_RETURN(const sampling::Logprobs logprobs,
                          sampling::ComputeLogprobs(logits.subspan(i * vocab, vocab), next, 0));
      request.prompt_logprobs.push_back(logprobs.logprob);
    }
  }
  return absl::OkStatus();
}

absl::Status DecodeEngineImpl::FirstToken(DecodeRequest& request, int64_t piece_rows) {
  request.times.finished = clock_.Monotonic();
  sampling::SamplerContext context;
  context.vocab_size = model_.config().vocab;
  context.prompt = request.call.tokens;
  context.eos_ids = options_.eos_ids;
  request.sampler.emplace(request.call.sampling, context);
  RF_ASSIGN_OR_RETURN(const absl::Span<float> logits, pass_->PieceLogits(piece_rows - 1, 1));
  RF_ASSIGN_OR_RETURN(sampling::SampleResult sample, request.sampler->Sample(logits));
  request.state = RequestState::kRunning;
  totals_.prompt_tokens += request.plan.tokens;
  totals_.filled_tokens += request.plan.filled_count();
  totals_.exact_tokens += request.plan.exact_count();
  request.times.first_token = clock_.Monotonic();
  request.sink->OnEvent(request.Started());
  request.fill = nullptr;  // it borrows the intake's rows
  if (request.intake != nullptr) request.intake->DropRows();
  Emit(request, std::move(sample));
  return absl::OkStatus();
}

void DecodeEngineImpl::Emit(DecodeRequest& request, sampling::SampleResult sample) {
  const bool stop = sample.is_stop;
  request.last_token = sample.token;
  ++request.generated;
  ++totals_.generated_tokens;
  request.sink->OnEvent(TokenEvent{std::move(sample)});
  if (stop) {
    Finish(request, absl::OkStatus(), FinishReason::kStop);
  } else if (request.generated == request.call.max_tokens) {
    Finish(request, absl::OkStatus(), FinishReason::kLength);
  }
}

void DecodeEngineImpl::Finish(DecodeRequest& request, const absl::Status& status, FinishReason reason) {
  if (request.state == RequestState::kQueued) LeaveQueue();
  pool_.Release(request.blocks);
  auto node = requests_.extract(request.handle);
  RF_CHECK(!node.empty());
  Count(request.state, status);
  Publish();  // whoever sees the end sees the blocks free
  request.sink->OnEvent(FinishedEvent{status, reason, request.generated});
  node.mapped().reset();  // cancels its transfer
  absl::MutexLock lock(&mutex_);
  --active_;
}

void DecodeEngineImpl::Count(RequestState state, const absl::Status& status) {
  if (status.ok()) {
    ++totals_.requests_ok;
  } else if (state == RequestState::kQueued && absl::IsResourceExhausted(status)) {
    ++totals_.requests_rejected;
  } else if (absl::IsCancelled(status)) {
    ++totals_.requests_cancelled;
  } else {
    ++totals_.requests_failed;
  }
}

void DecodeEngineImpl::LeaveQueue() {
  absl::MutexLock lock(&mutex_);
  --queued_;
}

void DecodeEngineImpl::CheckConserved() const {
  const cache::BlockCounts counts = pool_.counts();
  int64_t held = 0;
  for (const auto& [id, request] : requests_) held += static_cast<int64_t>(request->blocks.blocks.size());
  RF_CHECK(counts.conserved());
  RF_CHECK(counts.used == held);
}

void DecodeEngineImpl::Publish() {
  DecodeStats stats = totals_;
  for (const auto& [id, request] : requests_) {
    stats.receiving += request->state == RequestState::kReceiving;
    stats.finishing += request->state == RequestState::kFilling || request->state == RequestState::kFinishing;
    stats.running += request->state == RequestState::kRunning;
  }
  const cache::BlockCounts blocks = pool_.counts();
  stats.blocks_total = blocks.total;
  stats.blocks_free = blocks.free;
  stats.blocks_used = blocks.used;
  stats.blocks_cached = blocks.cached;
  absl::MutexLock lock(&mutex_);
  published_ = stats;
}

absl::Status CheckOptions(const model::Model& model, const DecodeEngineOptions& options) {
  if (options.max_running < 1 || options.max_queued < 1 || options.piece_tokens < 1 ||
      options.context_tokens < 2) {
    return base::Error(
        absl::StatusCode::kInvalidArgument, "DECODE_OPTIONS",
        "max_running, max_queued and piece_tokens must be at least 1, context_tokens at least 2");
  }
  if (!model.has_head() || model.loaded_layers() != model.config().layers) {
    return base::Error(absl::StatusCode::kInvalidArgument, "DECODE_MODEL",
                       "a decode worker needs all layers of the model and its head");
  }
  const int64_t needed = cache::BlocksFor(options.context_tokens);
  if (options.cache_blocks >= needed) return absl::OkStatus();
  return base::Error(
      absl::StatusCode::kInvalidArgument, "CACHE_TOO_SMALL",
      absl::StrCat("one request of ", options.context_tokens, " tokens needs ", needed, " KV blocks of ",
                   kernels::kBlockTokens, " tokens; the cache has ", options.cache_blocks));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeEngine>> DecodeEngine::Create(const model::Model& model,
                                                                   ridge::MapSets maps, const Hello& hello,
                                                                   KvSourceDirectory* sources,
                                                                   const base::Clock& clock,
                                                                   const DecodeEngineOptions& options) {
  RF_RETURN_IF_ERROR(CheckOptions(model, options));
  RF_ASSIGN_OR_RETURN(
      auto pass,
      DecodePass::Create(model, maps, {options.cache_blocks, options.max_running, options.piece_tokens}));
  return std::make_unique<DecodeEngineImpl>(model, maps, hello, sources, clock, options, std::move(pass));
}

}  // namespace ridgefill::runtime
