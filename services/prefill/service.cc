#include "services/prefill/service.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "engine/base/log.h"
#include "services/common/call_context.h"
#include "services/common/status.h"
#include "services/transport/frame_queue.h"
#include "services/transport/kv_convert.h"

namespace ridgefill::prefill {
namespace {

// One transfer's way out: the engine pushes into the queue, gRPC writes one message at a time out of it.
// Shared by the engine's sink and by gRPC (self_, until OnDone).
class PrefillWriter : public grpc::ServerWriteReactor<v1::PrefillResponse> {
 public:
  static std::shared_ptr<PrefillWriter> Make(const runtime::PrefillCall& call, int64_t max_bytes) {
    auto writer = std::shared_ptr<PrefillWriter>(new PrefillWriter(call, max_bytes));
    writer->self_ = writer;
    return writer;
  }

  transport::FrameQueue& queue() { return queue_; }

  void Send(runtime::KvFrame frame) {
    queue_.Push(std::move(frame));
    WriteNext();
  }
  void End(absl::Status status) {
    queue_.End(std::move(status));
    WriteNext();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) queue_.Close();
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
    }
    WriteNext();
  }
  void OnCancel() override {
    queue_.Close();
    WriteNext();
  }
  void OnDone() override {
    LogCall();
    const std::shared_ptr<PrefillWriter> last = std::move(self_);
  }

 private:
  PrefillWriter(const runtime::PrefillCall& call, int64_t max_bytes)
      : id_(call.id),
        tokens_(static_cast<int64_t>(call.tokens.size())),
        mode_(ridge::Name(call.decision.mode)),
        trace_(call.trace_parent),
        queue_(max_bytes) {}

  void WriteNext() {
    absl::MutexLock lock(&mutex_);
    if (writing_ || finished_) return;
    if (auto frame = queue_.TryPop()) {
      bytes_ += static_cast<int64_t>(frame->payload.size());
      ++frames_;
      transport::ToProto(id_, *std::move(frame), response_);
      writing_ = true;
      StartWrite(&response_);
    } else if (auto status = queue_.Ended()) {
      finished_ = true;
      status_ = *status;
      Finish(common::ToGrpcStatus(*status));
    }
  }

  void LogCall() {
    absl::MutexLock lock(&mutex_);
    base::Log(base::Severity::kInfo, "prefill",
              {{"transfer", absl::StrFormat("%016x%016x", id_.high, id_.low)},
               {"trace", trace_},
               {"mode", mode_},
               {"prompt_tokens", tokens_},
               {"frames", frames_},
               {"bytes", bytes_},
               {"seconds", absl::ToDoubleSeconds(absl::Now() - start_)},
               {"status", std::string(common::CodeName(status_.code()))},
               {"message", std::string(status_.message())}});
  }

  const runtime::TransferId id_;
  const int64_t tokens_;
  const std::string mode_;
  const std::string trace_;
  const absl::Time start_ = absl::Now();
  transport::FrameQueue queue_;
  std::shared_ptr<PrefillWriter> self_;

  absl::Mutex mutex_;
  v1::PrefillResponse response_ ABSL_GUARDED_BY(mutex_);  // the message being written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  int64_t frames_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

class GrpcSink : public runtime::KvSink {
 public:
  explicit GrpcSink(std::shared_ptr<PrefillWriter> writer) : writer_(std::move(writer)) {}
  bool HasRoom() const override { return writer_->queue().HasRoom(); }
  void Send(runtime::KvFrame frame) override { writer_->Send(std::move(frame)); }
  void Finish(absl::Status status) override { writer_->End(std::move(status)); }
  bool Cancelled() const override { return writer_->queue().closed(); }
  void SetWakeup(std::function<void()> wake) override { writer_->queue().SetWriterWakeup(std::move(wake)); }

 private:
  std::shared_ptr<PrefillWriter> writer_;
};

}  // namespace

grpc::ServerWriteReactor<v1::PrefillResponse>* PrefillServiceImpl::Prefill(
    grpc::CallbackServerContext* context, const v1::PrefillRequest* request) {
  auto parsed = transport::FromProto(*request);
  absl::Status malformed = parsed.status();
  runtime::PrefillCall call = malformed.ok() ? *std::move(parsed) : runtime::PrefillCall{};
  call.deadline = common::DeadlineOf(*context);
  call.trace_parent = common::TraceParentOf(*context);
  const auto writer = PrefillWriter::Make(call, options_.sink_buffer_bytes);
  if (!malformed.ok()) {
    writer->End(std::move(malformed));
    return writer.get();
  }
  std::unique_ptr<runtime::KvSink> sink = std::make_unique<GrpcSink>(writer);
  if (absl::Status refused = engine_.Submit(std::move(call), sink); !refused.ok()) writer->End(refused);
  return writer.get();  // alive until OnDone, which comes after this method has returned
}

grpc::ServerUnaryReactor* PrefillServiceImpl::DescribePrefill(grpc::CallbackServerContext* context,
                                                              const v1::DescribePrefillRequest*,
                                                              v1::DescribePrefillResponse* response) {
  const runtime::PrefillStats stats = engine_.Stats();
  *response = description_;
  response->set_queued_tokens(stats.queued_tokens);
  response->set_queued(stats.queued);
  response->set_running(stats.running);
  auto* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace ridgefill::prefill
