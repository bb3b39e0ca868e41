// Transport inside one process: the prefill engine's frames go straight into the decode engine's hands.
#include <utility>

#include "engine/base/status.h"
#include "services/transport/frame_queue.h"
#include "services/transport/transport.h"

namespace ridgefill::transport {
namespace {

class LocalSink : public runtime::KvSink {
 public:
  explicit LocalSink(std::shared_ptr<FrameQueue> queue) : queue_(std::move(queue)) {}
  bool HasRoom() const override { return queue_->HasRoom(); }
  void Send(runtime::KvFrame frame) override { queue_->Push(std::move(frame)); }
  void Finish(absl::Status status) override { queue_->End(std::move(status)); }
  bool Cancelled() const override { return queue_->closed(); }
  void SetWakeup(std::function<void()> wake) override { queue_->SetWriterWakeup(std::move(wake)); }

 private:
  std::shared_ptr<FrameQueue> queue_;
};

class LocalTransfer : public runtime::KvTransfer {
 public:
  explicit LocalTransfer(std::shared_ptr<FrameQueue> queue) : queue_(std::move(queue)) {}
  ~LocalTransfer() override {
    queue_->SetReaderWakeup({});
    queue_->Close();
  }
  std::optional<runtime::KvFrame> TryNext() override { return queue_->TryPop(); }
  std::optional<absl::Status> Ended() override { return queue_->Ended(); }
  void Cancel() override { queue_->Close(); }

 private:
  std::shared_ptr<FrameQueue> queue_;
};

class LocalSource : public runtime::KvSource {
 public:
  explicit LocalSource(const Options& options)
      : engine_(*options.local_engine), max_bytes_(options.receive_buffer_bytes) {}

  std::unique_ptr<runtime::KvTransfer> Open(runtime::PrefillCall call, std::function<void()> wake) override {
    auto queue = std::make_shared<FrameQueue>(max_bytes_);
    queue->SetReaderWakeup(std::move(wake));
    std::unique_ptr<runtime::KvSink> sink = std::make_unique<LocalSink>(queue);
    if (absl::Status refused = engine_.Submit(std::move(call), sink); !refused.ok()) queue->End(refused);
    return std::make_unique<LocalTransfer>(std::move(queue));
  }

 private:
  runtime::PrefillEngine& engine_;
  const int64_t max_bytes_;
};

class LocalDirectory : public runtime::KvSourceDirectory {
 public:
  explicit LocalDirectory(const Options& options) : source_(std::make_shared<LocalSource>(options)) {}
  absl::StatusOr<std::shared_ptr<runtime::KvSource>> Find(const std::string&) override { return source_; }

 private:
  std::shared_ptr<runtime::KvSource> source_;
};

absl::StatusOr<std::unique_ptr<runtime::KvSourceDirectory>> Connect(const Options& options) {
  if (options.local_engine == nullptr) {
    return base::Error(absl::StatusCode::kFailedPrecondition, "TRANSPORT_LOCAL",
                       "transport \"local\" needs a prefill engine in the same process (ridgefill serve)");
  }
  return std::make_unique<LocalDirectory>(options);
}

}  // namespace

extern const Transport kTransport_local;
const Transport kTransport_local = {"local", {}, &Connect};

}  // namespace ridgefill::transport
