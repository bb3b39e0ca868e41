// Time as a parameter. Every component that waits or measures takes a Clock, so that tests can move time by
// hand.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ridgefill::base {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time, for logs and deadlines that cross processes.
  virtual absl::Time Now() const = 0;
  // Time since some fixed point of this process; never goes back. Every measured interval uses it.
  virtual absl::Duration Monotonic() const = 0;
};

std::unique_ptr<Clock> MakeSystemClock();

// Stands still until advanced.
class ManualClock : public Clock {
 public:
  absl::Time Now() const override;
  absl::Duration Monotonic() const override;
  void Advance(absl::Duration by);

 private:
  mutable absl::Mutex mutex_;
  absl::Duration elapsed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ridgefill::base
