// Frames of one transfer on their way, bounded by bytes. Both ends of every transport keep one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/runtime/kv_frame.h"

namespace ridgefill::transport {

// Thread-safe. Wake-ups are called from whichever thread caused them, without any lock held, and possibly
// once more after they were replaced: they must own what they touch.
class FrameQueue {
 public:
  explicit FrameQueue(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Writer's end.
  bool HasRoom() const;
  void Push(runtime::KvFrame frame);  // always taken; dropped after Close
  void End(absl::Status status);      // the first call counts
  void SetWriterWakeup(std::function<void()> wake);

  // Reader's end.
  std::optional<runtime::KvFrame> TryPop();
  // Once the writer ended and every frame was popped.
  std::optional<absl::Status> Ended() const;
  void SetReaderWakeup(std::function<void()> wake);

  // Either end: what is queued is dropped and nothing more is taken. Wakes the writer.
  void Close();
  bool closed() const;

 private:
  const int64_t max_bytes_;
  mutable absl::Mutex mutex_;
  std::deque<runtime::KvFrame> frames_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> wake_writer_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> wake_reader_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ridgefill::transport
