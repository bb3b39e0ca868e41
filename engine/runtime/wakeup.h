// Wakes an engine's step loop. Shared with the transports, whose threads may call it while the engine goes
// away: hence held by shared_ptr. Thread-safe.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ridgefill::runtime {

class Wakeup {
 public:
  void Notify() {
    absl::MutexLock lock(&mutex_);
    pending_ = true;
  }
  // Returns at once when notified since the last call, so that no wake-up is lost.
  void Wait(absl::Duration at_most) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&pending_), at_most);
    pending_ = false;
  }

 private:
  absl::Mutex mutex_;
  bool pending_ ABSL_GUARDED_BY(mutex_) = false;
};

// An idle engine still comes round this often: deadlines are seen, and liveness means that the loop moves.
inline constexpr absl::Duration kIdleWait = absl::Milliseconds(50);

}  // namespace ridgefill::runtime
