#include "tests/engine/runtime/direct_transport.h"

#include <utility>

#include "engine/base/check.h"
#include "engine/base/status.h"

namespace ridgefill::runtime {
namespace {

// Both ends share it; wake-ups are called outside the lock.
struct Channel {
  absl::Mutex mutex;
  std::deque<KvFrame> frames ABSL_GUARDED_BY(mutex);
  std::optional<absl::Status> end ABSL_GUARDED_BY(mutex);
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  std::function<void()> wake_prefill ABSL_GUARDED_BY(mutex);
  std::function<void()> wake_decode;  // set before the channel is shared

  void WakePrefill() {
    std::function<void()> wake;
    {
      absl::MutexLock lock(&mutex);
      wake = wake_prefill;
    }
    if (wake) wake();
  }
};

class Sink : public KvSink {
 public:
  Sink(std::shared_ptr<Channel> channel, const DirectOptions& options)
      : channel_(std::move(channel)), options_(options) {}
  ~Sink() override { RF_CHECK(finished_); }

  bool HasRoom() const override {
    absl::MutexLock lock(&channel_->mutex);
    return sent_ < options_.stall_after && channel_->frames.size() < options_.max_frames;
  }
  void Send(KvFrame frame) override {
    RF_CHECK(!finished_);
    ++sent_;
    std::vector<KvFrame> out;
    if (options_.fault) {
      out = options_.fault(std::move(frame));
    } else {
      out.push_back(std::move(frame));
    }
    {
      absl::MutexLock lock(&channel_->mutex);
      for (KvFrame& f : out) channel_->frames.push_back(std::move(f));
    }
    channel_->wake_decode();
  }
  void Finish(absl::Status status) override {
    RF_CHECK(!finished_);
    finished_ = true;
    {
      absl::MutexLock lock(&channel_->mutex);
      channel_->end = options_.early_end.value_or(status);
    }
    channel_->wake_decode();
  }
  bool Cancelled() const override {
    absl::MutexLock lock(&channel_->mutex);
    return channel_->cancelled;
  }
  void SetWakeup(std::function<void()> wake) override {
    absl::MutexLock lock(&channel_->mutex);
    channel_->wake_prefill = std::move(wake);
  }
  void Abandon() { finished_ = true; }

 private:
  const std::shared_ptr<Channel> channel_;
  const DirectOptions options_;
  bool finished_ = false;
  size_t sent_ = 0;  // the engine's thread only, as is HasRoom
};

class Transfer : public KvTransfer {
 public:
  explicit Transfer(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
  ~Transfer() override { Cancel(); }

  std::optional<KvFrame> TryNext() override {
    std::optional<KvFrame> frame;
    {
      absl::MutexLock lock(&channel_->mutex);
      if (channel_->frames.empty()) return std::nullopt;
      frame = std::move(channel_->frames.front());
      channel_->frames.pop_front();
    }
    channel_->WakePrefill();
    return frame;
  }
  std::optional<absl::Status> Ended() override {
    absl::MutexLock lock(&channel_->mutex);
    return channel_->frames.empty() ? channel_->end : std::nullopt;
  }
  void Cancel() override {
    {
      absl::MutexLock lock(&channel_->mutex);
      channel_->cancelled = true;
    }
    channel_->WakePrefill();
  }

 private:
  const std::shared_ptr<Channel> channel_;
};

}  // namespace

std::unique_ptr<KvTransfer> DirectSource::Open(PrefillCall call, std::function<void()> wake) {
  auto channel = std::make_shared<Channel>();
  channel->wake_decode = std::move(wake);
  auto own = std::make_unique<Sink>(channel, options_);
  Sink* raw = own.get();
  std::unique_ptr<KvSink> sink = std::move(own);
  const absl::Status status = engine_.Submit(std::move(call), sink);
  if (!status.ok()) {
    raw->Abandon();
    absl::MutexLock lock(&channel->mutex);
    channel->end = status;
  }
  if (!status.ok()) channel->wake_decode();
  return std::make_unique<Transfer>(channel);
}

absl::StatusOr<std::shared_ptr<KvSource>> DirectDirectory::Find(const std::string& address) {
  if (address == "nowhere") {
    return base::Error(absl::StatusCode::kUnavailable, "NO_WORKER", "no prefill worker at `nowhere`");
  }
  return source_;
}

}  // namespace ridgefill::runtime
