// The router's front door: so many requests in flight, so many waiting, each for so long; one more is refused
// at once.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"

namespace ridgefill::router {

struct AdmissionOptions {
  int max_in_flight = 256;
  int max_queued = 256;
  absl::Duration queue_timeout = absl::Seconds(30);
};

// Thread-safe. First come, first served. Callbacks are called without any lock held.
class Admission {
 public:
  Admission(const AdmissionOptions& options, const base::Clock& clock) : options_(options), clock_(clock) {}

  // OK: admitted, to be followed by one Leave(). RESOURCE_EXHAUSTED: ROUTER_QUEUE_FULL or
  // ROUTER_QUEUE_TIMEOUT. UNAVAILABLE: DRAINING. CANCELLED: Withdraw().
  using Decided = std::function<void(absl::Status)>;
  // Decides at once (calling `decided` before it returns) or queues. The ticket is for Withdraw.
  uint64_t Enter(Decided decided);
  void Leave();
  // Takes a waiting request back; nothing happens when it was decided already.
  void Withdraw(uint64_t ticket);
  // Refuses who has waited too long; to be called every now and then.
  void Expire();
  // From now on nobody enters; who waits may still.
  void Close();

  int in_flight() const;
  int queued() const;

 private:
  struct Waiting {
    uint64_t ticket;
    absl::Duration since;
    Decided decided;
  };

  const AdmissionOptions options_;
  const base::Clock& clock_;
  mutable absl::Mutex mutex_;
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ridgefill::router
