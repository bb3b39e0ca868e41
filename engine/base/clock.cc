#include "engine/base/clock.h"

#include <chrono>

namespace ridgefill::base {
namespace {

class SystemClock : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
  absl::Duration Monotonic() const override {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace

std::unique_ptr<Clock> MakeSystemClock() { return std::make_unique<SystemClock>(); }

absl::Time ManualClock::Now() const { return absl::UnixEpoch() + Monotonic(); }

absl::Duration ManualClock::Monotonic() const {
  absl::MutexLock lock(&mutex_);
  return elapsed_;
}

void ManualClock::Advance(absl::Duration by) {
  absl::MutexLock lock(&mutex_);
  elapsed_ += by;
}

}  // namespace ridgefill::base
