#include "services/router/generate_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "engine/base/rng.h"
#include "engine/base/status.h"
#include "services/common/call_context.h"
#include "services/common/convert.h"
#include "services/common/status.h"

namespace ridgefill::router {
namespace {

constexpr int kMaxRetries = 2;
constexpr absl::Duration kRetryPause = absl::Milliseconds(50);  // doubled for the second one

std::string NewRequestId() { return absl::StrFormat("%016x%016x", base::EntropySeed(), base::EntropySeed()); }

}  // namespace

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerateCall::Start(Core& core,
                                                                    grpc::CallbackServerContext* context,
                                                                    const v1::GenerateRequest* request) {
  const std::shared_ptr<GenerateCall> call(new GenerateCall(core, context, request));
  call->self_ = call;
  call->Begin();
  return call.get();  // alive until OnDone, which comes after the service's method has returned
}

GenerateCall::GenerateCall(Core& core, grpc::CallbackServerContext* context,
                           const v1::GenerateRequest* request)
    : core_(core),
      context_(context),
      request_(request),
      id_(NewRequestId()),
      trace_(common::TraceParentOf(*context)),
      deadline_(std::min(common::DeadlineOf(*context), absl::Now() + core.default_deadline)),
      timer_(core.clock) {
  record_.id = id_;
  record_.trace = trace_;
  record_.asked = request->mode();
}

void GenerateCall::Begin() {
  context_->AddInitialMetadata("x-request-id", id_);
  auto parsed = CheckRequest(*request_, core_.limits);
  if (!parsed.ok()) return EndWith(parsed.status());
  parsed_ = *std::move(parsed);
  if (!parsed_.has_seed) parsed_.sampling.seed = base::EntropySeed();
  const uint64_t ticket = core_.admission.Enter(
      [self = shared_from_this()](absl::Status status) { self->OnAdmitted(std::move(status)); });
  absl::MutexLock lock(&mutex_);
  ticket_ = ticket;
}

void GenerateCall::OnAdmitted(absl::Status status) {
  if (!status.ok()) return EndWith(std::move(status));
  {
    absl::MutexLock lock(&mutex_);
    admitted_ = true;
    timer_.Admitted();
    StartSendInitialMetadata();
  }
  if (core_.pool.Post([self = shared_from_this()] { self->Prepare(); })) return;
  EndWith(base::Error(absl::StatusCode::kResourceExhausted, "ROUTER_BUSY",
                      "too many prompts wait for the tokenizer; try again later"));
}

void GenerateCall::Prepare() {
  bool cancelled = false;
  {
    absl::MutexLock lock(&mutex_);
    cancelled = cancelled_;
  }
  if (cancelled) return EndWith(CancelledStatus());  // while it waited for the pool
  if (absl::Status status = EncodeAndCheck(); !status.ok()) return EndWith(std::move(status));
  Attempt();
}

absl::Status GenerateCall::EncodeAndCheck() {
  RF_ASSIGN_OR_RETURN(tokens_, EncodePrompt(*request_, *core_.tokenizer));
  if (tokens_.empty()) return base::FieldError("prompt", "PROMPT_EMPTY", "the prompt has no tokens");
  const auto prompt_tokens = static_cast<int64_t>(tokens_.size());
  RF_RETURN_IF_ERROR(AnswerTokens(parsed_, prompt_tokens, core_.limits.context_tokens).status());
  RF_ASSIGN_OR_RETURN(auto answer,
                      Answer::Create(core_.tokenizer, parsed_.stop_strings, parsed_.sampling.min_tokens));
  absl::MutexLock lock(&mutex_);
  answer_ = std::move(answer);
  record_.prompt_tokens = prompt_tokens;
  return absl::OkStatus();
}

void GenerateCall::Attempt() {
  auto route = ChooseRoute();
  if (!route.ok()) return EndWith(route.status());
  AttemptOptions options;
  options.request = MakeDecodeRequest(*route);
  options.deadline = deadline_;
  options.trace_parent = trace_;
  options.on_message = [self = shared_from_this()](v1::DecodeResponse& message) { self->OnMessage(message); };
  options.on_done = [self = shared_from_this()](const grpc::Status& status) { self->OnAttemptDone(status); };
  auto attempt =
      std::make_shared<DecodeAttempt>(*core_.decode_stubs[route->decode->index()], std::move(options));
  {
    absl::MutexLock lock(&mutex_);
    record_.decode_worker = core_.decode.address(route->decode->index());
    record_.prefill_worker = route->prefill.has_value() ? core_.prefill.address(route->prefill->index()) : "";
    route_ = *std::move(route);
    attempt_ = attempt;
    if (cancelled_) attempt->Cancel();
  }
  DecodeAttempt::Run(attempt);
}

absl::StatusOr<GenerateCall::Route> GenerateCall::ChooseRoute() {
  Route route;
  const PromptFacts prompt{parsed_.mode,
                           static_cast<int64_t>(tokens_.size()),
                           static_cast<int64_t>(tokens_.size()),
                           parsed_.prompt_logprobs,
                           parsed_.share,
                           parsed_.selector,
                           parsed_.split};
  const int split = WantedSplit(core_.policy, prompt);
  RF_ASSIGN_OR_RETURN(route.prefill, ChoosePrefill(WantsMaps(core_.policy, prompt), split));
  PrefillFacts facts;
  if (route.prefill.has_value()) {
    const WorkerReport report = core_.prefill.report(route.prefill->index());
    facts = {report.layers, report.loaded_layers, report.maps};
  }
  std::vector<int> avoid;
  {
    absl::MutexLock lock(&mutex_);
    avoid = avoid_decode_;
  }
  // Where no split is asked for it is the prefill worker's default one, which decode workers may lack.
  const int held = OfSplit(facts.maps, split).split;
  auto decode = core_.decode.Pick(avoid, WantsMapsOnDecode(core_.policy, prompt), held > 0 ? held : split);
  // Without a decode worker what is wrong with the request comes first.
  const std::vector<MapFacts> maps = decode.ok() ? core_.decode.report(decode->index()).maps : facts.maps;
  auto decision = Decide(core_.policy, prompt, facts, maps);
  // But not that nobody has maps: those that a decode worker has will be back with it.
  const auto wrong = base::GetErrorDetail(decision.status());
  if (!decode.ok() && WantsMapsOnDecode(core_.policy, prompt) != MapsWanted::kNo && wrong.has_value() &&
      wrong->reason == "NO_MAPS") {
    return decode.status();
  }
  RF_ASSIGN_OR_RETURN(route.decision, std::move(decision));
  if (route.decision.local) route.prefill.reset();
  RF_ASSIGN_OR_RETURN(route.decode, std::move(decode));
  const int64_t worker_context = core_.decode.report(route.decode->index()).context_tokens;
  RF_ASSIGN_OR_RETURN(route.max_tokens, AnswerTokens(parsed_, prompt.tokens,
                                                     std::min(core_.limits.context_tokens, worker_context)));
  return route;
}

// No prefill worker is no matter for a prompt that decode runs by itself.
absl::StatusOr<std::optional<Placement::Lease>> GenerateCall::ChoosePrefill(MapsWanted maps, int split) {
  if (core_.prefill.size() == 0) return std::optional<Placement::Lease>();
  std::vector<int> avoid;
  {
    absl::MutexLock lock(&mutex_);
    avoid = avoid_prefill_;
  }
  auto lease = core_.prefill.Pick(avoid, maps, split);
  if (lease.ok()) return std::optional<Placement::Lease>(*std::move(lease));
  const bool short_prompt = static_cast<int64_t>(tokens_.size()) <= core_.policy.local_max_tokens;
  const bool may_run_exact = parsed_.mode == ridge::Mode::kAuto || parsed_.mode == ridge::Mode::kExact;
  if (short_prompt && may_run_exact) return std::optional<Placement::Lease>();
  return lease.status();
}

v1::DecodeRequest GenerateCall::MakeDecodeRequest(const Route& route) const {
  runtime::DecodeCall call;
  call.request_id = id_;
  call.tokens = tokens_;
  call.decision = route.decision;
  if (route.prefill.has_value()) call.prefill_address = core_.prefill.address(route.prefill->index());
  call.sampling = parsed_.sampling;
  call.max_tokens = route.max_tokens;
  call.prompt_logprobs = parsed_.prompt_logprobs;
  return common::ToProto(call);
}

void GenerateCall::OnMessage(v1::DecodeResponse& message) {
  absl::MutexLock lock(&mutex_);
  switch (message.event_case()) {
    case v1::DecodeResponse::kStarted: {
      started_ = true;
      route_->prefill.reset();  // its part is done and no retry can follow: it is free for others
      timer_.DecodeStarted(message.started());
      record_.fill = message.started().fill();
      v1::Started started;
      started.set_request_id(id_);
      started.set_model(core_.limits.model);
      started.set_seed(parsed_.sampling.seed);
      *started.mutable_fill() = message.started().fill();
      started.mutable_prompt_logprobs()->Swap(message.mutable_started()->mutable_prompt_logprobs());
      outbox_.Started(std::move(started));
      break;
    }
    case v1::DecodeResponse::kTokens:
      TakeTokens(message.tokens());
      break;
    case v1::DecodeResponse::kFinished:
      decode_finished_ = true;
      record_.reason = message.finished().reason();
      break;
    case v1::DecodeResponse::EVENT_NOT_SET:
      break;  // of a newer minor version
  }
  WriteNext();
}

void GenerateCall::TakeTokens(const v1::DecodeTokens& tokens) {
  for (const auto& token : tokens.tokens()) {
    if (stopped_) return;
    stopped_ = answer_->Push(token, outbox_.delta());
    if (stopped_ && attempt_ != nullptr) attempt_->Cancel();  // the worker knows nothing of stop strings
  }
}

void GenerateCall::OnAttemptDone(const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  attempt_.reset();
  if (RetryLocked(status)) return;
  route_.reset();
  end_ = ComposeEnd(status);
  WriteNext();
}

bool GenerateCall::RetryLocked(const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE || started_ || cancelled_) return false;
  // Without details it comes from gRPC itself: the decode worker is gone. With them the worker speaks,
  // perhaps of its prefill worker.
  const int decode = route_->decode->index();
  if (status.error_details().empty()) core_.decode.MarkDown(decode);
  avoid_decode_.push_back(decode);
  if (route_->prefill.has_value()) avoid_prefill_.push_back(route_->prefill->index());
  const absl::Duration pause = kRetryPause * (1 << record_.retries);
  if (record_.retries >= kMaxRetries || absl::Now() + pause >= deadline_) return false;
  ++record_.retries;
  route_.reset();
  // A new alarm each time: the callback of the last one may still be returning. It lets go of the call
  // itself, since gRPC keeps a callback as long as its alarm, and the alarm is the call's.
  retry_alarm_ = std::make_unique<grpc::Alarm>();
  retry_alarm_->Set(absl::ToChronoTime(absl::Now() + pause), [self = shared_from_this()](bool) mutable {
    const std::shared_ptr<GenerateCall> call = std::move(self);
    if (!call->core_.pool.Post([call] { call->Attempt(); })) {
      call->EndWith(
          base::Error(absl::StatusCode::kUnavailable, "ROUTER_BUSY", "a worker was lost; try again"));
    }
  });
  return true;
}

absl::Status GenerateCall::ComposeEnd(const grpc::Status& status) {
  const bool complete = stopped_ || (decode_finished_ && status.ok());
  if (!complete) {
    if (cancelled_) return CancelledStatus();
    if (!status.ok()) return common::FromGrpcStatus(status);
    return base::Error(absl::StatusCode::kInternal, "DECODE_INCOMPLETE",
                       "the decode worker ended its stream without saying why");
  }
  answer_->Finish(outbox_.delta());
  if (!answer_->stop_string().empty()) record_.reason = v1::FINISH_REASON_STOP_STRING;
  v1::Finished finished;
  finished.set_reason(record_.reason);
  finished.set_stop_string(answer_->stop_string());
  finished.mutable_usage()->set_prompt_tokens(record_.prompt_tokens);
  finished.mutable_usage()->set_generated_tokens(answer_->tokens());
  outbox_.Finished(std::move(finished));
  return absl::OkStatus();
}

void GenerateCall::EndWith(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  end_ = std::move(status);
  WriteNext();
}

void GenerateCall::WriteNext() {
  if (writing_ || finishing_) return;
  if (!cancelled_) {
    if (auto next = outbox_.Next()) {
      response_.Swap(&*next);
      writing_ = true;
      // Everything before it has been written by now, so its timing is complete.
      if (response_.has_finished()) *response_.mutable_finished()->mutable_timing() = timer_.Now();
      StartWrite(&response_);
      return;
    }
  }
  if (!end_.has_value()) return;
  finishing_ = true;
  Finish(common::ToGrpcStatus(*end_));
}

void GenerateCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  if (ok && response_.has_delta()) timer_.TokenWritten();
  WriteNext();
}

void GenerateCall::OnCancel() {
  uint64_t ticket = 0;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    ticket = ticket_;
    if (attempt_ != nullptr) attempt_->Cancel();
    WriteNext();
  }
  core_.admission.Withdraw(ticket);
}

absl::Status GenerateCall::CancelledStatus() const {
  if (absl::Now() >= deadline_) {
    return base::Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED",
                       "the deadline passed before the answer was complete");
  }
  return base::Error(absl::StatusCode::kCancelled, "CANCELLED", "the client cancelled the call");
}

void GenerateCall::OnDone() {
  bool admitted = false;
  {
    absl::MutexLock lock(&mutex_);
    admitted = admitted_;
    record_.timing = timer_.Now();
    record_.status = cancelled_ && end_->ok() ? CancelledStatus() : *end_;
    if (answer_.has_value()) record_.generated_tokens = answer_->tokens();
    core_.metrics.Observe(record_);
    LogRequest(record_);
  }
  if (admitted) core_.admission.Leave();
  const std::shared_ptr<GenerateCall> last = std::move(self_);
}

}  // namespace ridgefill::router
