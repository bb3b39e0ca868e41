// Transport between processes: one server-streaming call a transfer. The decode worker's end; the other one
// is services/prefill.
#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "engine/base/status.h"
#include "ridgefill/v1/prefill.grpc.pb.h"
#include "services/common/call_context.h"
#include "services/common/channel.h"
#include "services/common/status.h"
#include "services/transport/frame_queue.h"
#include "services/transport/kv_convert.h"
#include "services/transport/transport.h"

namespace ridgefill::transport {
namespace {

// Reads one frame at a time while the queue has room; TryNext() starts it again after a pause. Kept alive by
// gRPC (self_) until OnDone.
class PrefillReader : public grpc::ClientReadReactor<v1::PrefillResponse> {
 public:
  static std::shared_ptr<PrefillReader> Start(v1::PrefillService::Stub& stub,
                                              const runtime::PrefillCall& call, int64_t max_bytes,
                                              std::function<void()> wake) {
    auto reader = std::shared_ptr<PrefillReader>(new PrefillReader(call, max_bytes));
    reader->self_ = reader;
    reader->queue_.SetReaderWakeup(std::move(wake));
    stub.async()->Prefill(&reader->context_, &reader->request_, reader.get());
    reader->StartRead(&reader->response_);
    reader->StartCall();
    return reader;
  }

  std::optional<runtime::KvFrame> TryNext() {
    auto frame = queue_.TryPop();
    if (frame.has_value()) ReadOn();
    return frame;
  }
  std::optional<absl::Status> Ended() const { return queue_.Ended(); }

  // No frame and no wake-up reaches the engine afterwards.
  void Abandon() {
    queue_.SetReaderWakeup({});
    Cancel();
  }
  void Cancel() {
    queue_.Close();
    context_.TryCancel();
    ReadOn();  // a paused call must go on to its end to be freed
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone says why
    auto frame = FromProto(id_, response_);
    if (frame.ok()) {
      queue_.Push(*std::move(frame));
    } else {
      queue_.End(frame.status());
      queue_.Close();
      context_.TryCancel();
    }
    Next();
  }

  void OnDone(const grpc::Status& status) override {
    queue_.End(common::FromGrpcStatus(status));
    const std::shared_ptr<PrefillReader> last = std::move(self_);
  }

 private:
  PrefillReader(const runtime::PrefillCall& call, int64_t max_bytes)
      : id_(call.id), request_(ToProto(call)), queue_(max_bytes) {
    common::PassOn(call.deadline, call.trace_parent, context_);
  }

  // A hold keeps the call open while no read is pending: only then may another thread than gRPC's start one.
  void Next() {
    absl::MutexLock lock(&mutex_);
    if (queue_.HasRoom()) {
      StartRead(&response_);
    } else {
      paused_ = true;
      AddHold();
    }
  }
  void ReadOn() {
    absl::MutexLock lock(&mutex_);
    if (!paused_ || !queue_.HasRoom()) return;
    paused_ = false;
    StartRead(&response_);
    RemoveHold();
  }

  const runtime::TransferId id_;
  const v1::PrefillRequest request_;
  v1::PrefillResponse response_;
  grpc::ClientContext context_;
  FrameQueue queue_;
  std::shared_ptr<PrefillReader> self_;
  absl::Mutex mutex_;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
};

class GrpcTransfer : public runtime::KvTransfer {
 public:
  explicit GrpcTransfer(std::shared_ptr<PrefillReader> reader) : reader_(std::move(reader)) {}
  ~GrpcTransfer() override { reader_->Abandon(); }
  std::optional<runtime::KvFrame> TryNext() override { return reader_->TryNext(); }
  std::optional<absl::Status> Ended() override { return reader_->Ended(); }
  void Cancel() override { reader_->Cancel(); }

 private:
  std::shared_ptr<PrefillReader> reader_;
};

class GrpcSource : public runtime::KvSource {
 public:
  GrpcSource(const std::shared_ptr<grpc::Channel>& channel, int64_t max_bytes)
      : stub_(v1::PrefillService::NewStub(channel)), max_bytes_(max_bytes) {}

  std::unique_ptr<runtime::KvTransfer> Open(runtime::PrefillCall call, std::function<void()> wake) override {
    return std::make_unique<GrpcTransfer>(PrefillReader::Start(*stub_, call, max_bytes_, std::move(wake)));
  }

 private:
  std::unique_ptr<v1::PrefillService::Stub> stub_;
  const int64_t max_bytes_;
};

// One channel a worker, kept for good: their number is that of the workers which the operator configured.
class GrpcDirectory : public runtime::KvSourceDirectory {
 public:
  explicit GrpcDirectory(const Options& options) : options_(options) {}

  absl::StatusOr<std::shared_ptr<runtime::KvSource>> Find(const std::string& address) override {
    absl::MutexLock lock(&mutex_);
    auto& source = sources_[address];
    if (source == nullptr) {
      if (address.empty() || sources_.size() > kMaxWorkers) {
        sources_.erase(address);
        return base::Error(absl::StatusCode::kInvalidArgument, "PREFILL_ADDRESS",
                           "prefill_address is empty, or there were more than 1024 different ones");
      }
      source = std::make_shared<GrpcSource>(common::ConnectTo(address, options_.max_message_mb),
                                            options_.receive_buffer_bytes);
    }
    return source;
  }

 private:
  static constexpr size_t kMaxWorkers = 1024;
  const Options options_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<runtime::KvSource>> sources_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<runtime::KvSourceDirectory>> Connect(const Options& options) {
  return std::make_unique<GrpcDirectory>(options);
}

}  // namespace

extern const Transport kTransport_grpc;
const Transport kTransport_grpc = {
    "grpc", {.crosses_processes = true, .crosses_machines = true, .device_memory = false}, &Connect};

}  // namespace ridgefill::transport
