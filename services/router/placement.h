// Which worker takes a request: the least loaded one whose health is SERVING.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "services/router/split_policy.h"

namespace ridgefill::router {

// What the last check of a worker found. Load counts requests.
struct WorkerReport {
  bool serving = false;
  int64_t load = 0;                   // queued and running there, from all routers
  int64_t context_tokens = 0;         // 0: not known
  int layers = 0, loaded_layers = 0;  // prefill workers only: as in PrefillFacts
  std::vector<MapFacts> maps;         // the default one first
};

// The workers of one role. Thread-safe.
class Placement {
 public:
  Placement(std::string role, std::vector<std::string> addresses);

  // One request's claim on a worker: counts as its load until destroyed.
  class Lease {
   public:
    Lease(Lease&& other) noexcept : placement_(other.placement_), index_(other.index_) {
      other.placement_ = nullptr;
    }
    Lease& operator=(Lease&& other) noexcept;
    ~Lease() { Release(); }
    int index() const { return index_; }

   private:
    friend class Placement;
    Lease(Placement* placement, int index) : placement_(placement), index_(index) {}
    void Release();
    Placement* placement_;
    int index_;
  };

  // UNAVAILABLE (NO_WORKER) when none is SERVING. Workers in `avoid` are taken only when there is no other.
  // With maps (of `split`; 0: any) required, one without them is taken only when no serving one has them,
  // preferred: when none outside `avoid` has them.
  absl::StatusOr<Lease> Pick(absl::Span<const int> avoid, MapsWanted maps = MapsWanted::kNo, int split = 0);

  void Update(int index, const WorkerReport& report);
  // A call just failed there: nothing more goes to it until a check says SERVING.
  void MarkDown(int index);

  int size() const { return static_cast<int>(addresses_.size()); }
  const std::string& address(int index) const { return addresses_[index]; }
  const std::string& role() const { return role_; }
  WorkerReport report(int index) const;
  int in_flight(int index) const;
  // A worker that is or was seen serving, for questions about the model.
  std::optional<WorkerReport> Example() const;
  // Of all that are or were seen serving, one of each split, the first worker's default one first.
  std::vector<MapFacts> Maps() const;

 private:
  struct State {
    WorkerReport report;
    bool seen = false;
    int in_flight = 0;   // from here, now
    int64_t others = 0;  // from other routers, at the last report
  };
  const std::string role_;
  const std::vector<std::string> addresses_;
  mutable absl::Mutex mutex_;
  std::vector<State> states_ ABSL_GUARDED_BY(mutex_);
  int last_ ABSL_GUARDED_BY(mutex_) = -1;  // equals take turns
};

}  // namespace ridgefill::router
