#include "services/decode/service.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "engine/base/log.h"
#include "services/common/call_context.h"
#include "services/common/convert.h"
#include "services/common/status.h"

namespace ridgefill::decode {
namespace {

// One answer's way out. Tokens that find a write in progress share the next message, so a slow router costs
// no more messages than it takes; what waits is bounded by max_tokens. Shared by the engine's sink and by
// gRPC (self_, until OnDone).
class DecodeWriter : public grpc::ServerWriteReactor<v1::DecodeResponse> {
 public:
  static std::shared_ptr<DecodeWriter> Make(runtime::DecodeEngine& engine, const runtime::DecodeCall& call) {
    auto writer = std::shared_ptr<DecodeWriter>(new DecodeWriter(engine, call));
    writer->self_ = writer;
    return writer;
  }

  void SetHandle(uint64_t handle) {
    bool cancel = false;
    {
      absl::MutexLock lock(&mutex_);
      handle_ = handle;
      cancel = cancelled_;
    }
    if (cancel) engine_.Cancel(handle);
  }

  void OnEvent(runtime::DecodeEvent event) {
    absl::MutexLock lock(&mutex_);
    std::visit([this](auto& e) { Take(e); }, event);
    WriteNext();
  }
  void End(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    end_ = std::move(status);
    WriteNext();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) OnCancel();
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    WriteNext();
  }
  // The engine answers with its FinishedEvent, which ends the call. Called without the lock: the engine has
  // one of its own.
  void OnCancel() override {
    std::optional<uint64_t> handle;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      handle = handle_;
    }
    if (handle.has_value()) engine_.Cancel(*handle);
  }
  void OnDone() override {
    LogCall();
    const std::shared_ptr<DecodeWriter> last = std::move(self_);
  }

 private:
  DecodeWriter(runtime::DecodeEngine& engine, const runtime::DecodeCall& call)
      : engine_(engine),
        id_(call.request_id),
        trace_(call.trace_parent),
        mode_(ridge::Name(call.decision.mode)),
        reason_(call.decision.reason),
        with_logprobs_(call.sampling.logprobs.has_value()),
        prompt_tokens_(static_cast<int64_t>(call.tokens.size())) {}

  void Take(runtime::StartedEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    *pending_.emplace_back().mutable_started() = common::ToProto(event);
  }
  void Take(runtime::TokenEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (pending_.empty() || !pending_.back().has_tokens()) pending_.emplace_back();
    *pending_.back().mutable_tokens()->add_tokens() = common::ToProto(event.sample, with_logprobs_);
  }
  void Take(runtime::FinishedEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    end_ = event.status;
    generated_ = event.generated;
    if (!event.status.ok()) return;
    auto* finished = pending_.emplace_back().mutable_finished();
    finished->set_reason(common::ToProto(event.reason));
    finished->set_generated_tokens(event.generated);
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!pending_.empty() && !cancelled_) {
      response_ = std::move(pending_.front());
      pending_.pop_front();
      writing_ = true;
      StartWrite(&response_);
    } else if (end_.has_value()) {
      finished_ = true;
      Finish(common::ToGrpcStatus(*end_));
    }
  }

  void LogCall() {
    absl::MutexLock lock(&mutex_);
    const absl::Status status = end_.value_or(absl::OkStatus());
    base::Log(base::Severity::kInfo, "decode",
              {{"request", id_},
               {"trace", trace_},
               {"mode", mode_},
               {"reason", reason_},
               {"prompt_tokens", prompt_tokens_},
               {"generated_tokens", generated_},
               {"seconds", absl::ToDoubleSeconds(absl::Now() - start_)},
               {"status", std::string(common::CodeName(status.code()))},
               {"message", std::string(status.message())}});
  }

  runtime::DecodeEngine& engine_;
  const std::string id_, trace_, mode_, reason_;
  const bool with_logprobs_;
  const int64_t prompt_tokens_;
  const absl::Time start_ = absl::Now();
  std::shared_ptr<DecodeWriter> self_;

  absl::Mutex mutex_;
  std::optional<uint64_t> handle_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::DecodeResponse> pending_ ABSL_GUARDED_BY(mutex_);
  v1::DecodeResponse response_ ABSL_GUARDED_BY(mutex_);  // the message being written
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  int64_t generated_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

class GrpcTokenSink : public runtime::TokenSink {
 public:
  explicit GrpcTokenSink(std::shared_ptr<DecodeWriter> writer) : writer_(std::move(writer)) {}
  void OnEvent(runtime::DecodeEvent event) override { writer_->OnEvent(std::move(event)); }

 private:
  std::shared_ptr<DecodeWriter> writer_;
};

}  // namespace

grpc::ServerWriteReactor<v1::DecodeResponse>* DecodeServiceImpl::Decode(grpc::CallbackServerContext* context,
                                                                        const v1::DecodeRequest* request) {
  auto parsed = common::FromProto(*request);
  absl::Status malformed = parsed.status();
  runtime::DecodeCall call = malformed.ok() ? *std::move(parsed) : runtime::DecodeCall{};
  call.deadline = common::DeadlineOf(*context);
  call.trace_parent = common::TraceParentOf(*context);
  const auto writer = DecodeWriter::Make(engine_, call);
  if (!malformed.ok()) {
    writer->End(std::move(malformed));
    return writer.get();
  }
  const auto handle = engine_.Submit(std::move(call), std::make_unique<GrpcTokenSink>(writer));
  if (handle.ok()) {
    writer->SetHandle(*handle);
  } else {
    writer->End(handle.status());
  }
  return writer.get();  // alive until OnDone, which comes after this method has returned
}

grpc::ServerUnaryReactor* DecodeServiceImpl::DescribeDecode(grpc::CallbackServerContext* context,
                                                            const v1::DescribeDecodeRequest*,
                                                            v1::DescribeDecodeResponse* response) {
  const runtime::DecodeStats stats = engine_.Stats();
  *response = description_;
  response->set_blocks_total(stats.blocks_total);
  response->set_blocks_free(stats.blocks_free);
  response->set_queued(stats.queued);
  response->set_running(stats.receiving + stats.finishing + stats.running);
  auto* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace ridgefill::decode
