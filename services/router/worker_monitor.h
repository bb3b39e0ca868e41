// Asks every worker now and then for its health (grpc.health.v1) and its load, and tells Placement.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/model_identity.h"
#include "ridgefill/v1/prefill.pb.h"
#include "services/router/placement.h"

namespace grpc {
class Channel;
}

namespace ridgefill::router {

struct MonitorOptions {
  absl::Duration interval = absl::Milliseconds(250);
  absl::Duration timeout =
      absl::Seconds(5);          // not serving if silent for so long; a busy machine may take a while
  base::ModelIdentity identity;  // the router's; a worker of another model is never used
};

// Why a worker that says it is `worker` may not answer for the model `mine`; empty when it may. Names are for
// people and may differ, everything else must agree.
std::string ModelProblem(const base::ModelIdentity& mine, const v1::ModelIdentity& worker);

class WorkerTarget;  // one worker's checks

// Owns one thread. Checks of one worker never overlap; one that is slow or gone does not delay the others.
class WorkerMonitor {
 public:
  explicit WorkerMonitor(MonitorOptions options);
  ~WorkerMonitor();  // waits for the checks under way

  // Before Start. `channels` in the order of the placement's workers; `placement` must outlive the monitor.
  void WatchPrefill(Placement& placement, std::vector<std::shared_ptr<grpc::Channel>> channels);
  void WatchDecode(Placement& placement, std::vector<std::shared_ptr<grpc::Channel>> channels);
  // Returns when every worker has been asked once, or after the timeout. `every_round` is called
  // once a second or more often, however long the interval.
  void Start(std::function<void()> every_round);

 private:
  void Loop();

  const MonitorOptions options_;
  std::vector<std::unique_ptr<WorkerTarget>> targets_;
  std::function<void()> every_round_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ridgefill::router
