#include "services/transport/frame_queue.h"

#include <utility>

namespace ridgefill::transport {
namespace {

// Frames without payload count too, so that no stream of empty ones is without bound.
int64_t Cost(const runtime::KvFrame& frame) { return static_cast<int64_t>(frame.payload.size()) + 256; }

void Call(const std::function<void()>& wake) {
  if (wake) wake();
}

}  // namespace

bool FrameQueue::HasRoom() const {
  absl::MutexLock lock(&mutex_);
  return closed_ || bytes_ < max_bytes_;  // to a closed one everything may be sent: it is dropped
}

void FrameQueue::Push(runtime::KvFrame frame) {
  std::function<void()> wake;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_ || end_.has_value()) return;
    bytes_ += Cost(frame);
    frames_.push_back(std::move(frame));
    wake = wake_reader_;
  }
  Call(wake);
}

void FrameQueue::End(absl::Status status) {
  std::function<void()> wake;
  {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    end_ = std::move(status);
    wake = wake_reader_;
  }
  Call(wake);
}

void FrameQueue::SetWriterWakeup(std::function<void()> wake) {
  absl::MutexLock lock(&mutex_);
  wake_writer_ = std::move(wake);
}

std::optional<runtime::KvFrame> FrameQueue::TryPop() {
  std::function<void()> wake;
  std::optional<runtime::KvFrame> frame;
  {
    absl::MutexLock lock(&mutex_);
    if (frames_.empty()) return std::nullopt;
    frame = std::move(frames_.front());
    frames_.pop_front();
    const bool was_full = bytes_ >= max_bytes_;
    bytes_ -= Cost(*frame);
    if (was_full && bytes_ < max_bytes_) wake = wake_writer_;
  }
  Call(wake);
  return frame;
}

std::optional<absl::Status> FrameQueue::Ended() const {
  absl::MutexLock lock(&mutex_);
  return frames_.empty() ? end_ : std::nullopt;
}

void FrameQueue::SetReaderWakeup(std::function<void()> wake) {
  absl::MutexLock lock(&mutex_);
  wake_reader_ = std::move(wake);
}

void FrameQueue::Close() {
  std::function<void()> wake;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    closed_ = true;
    frames_.clear();
    bytes_ = 0;
    wake = wake_writer_;
  }
  Call(wake);
}

bool FrameQueue::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

}  // namespace ridgefill::transport
