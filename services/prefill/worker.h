// A prefill worker: the engine over a loaded model, warmed up, with its gRPC service and its metrics. What
// the program ridgefill-prefill and `ridgefill serve` are made of.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/runtime/prefill_engine.h"
#include "ridgefill/config/v1/config.pb.h"
#include "services/common/loaded_model.h"
#include "services/common/monitoring.h"

namespace grpc {
class Service;
}

namespace ridgefill::prefill {

inline constexpr char kServiceName[] = "ridgefill.v1.PrefillService";

// Thread-safe.
class PrefillWorker {
 public:
  // Returns after one small prompt has gone through the engine. `model` and `clock` must outlive the worker.
  static absl::StatusOr<std::unique_ptr<PrefillWorker>> Create(const common::LoadedModel& model,
                                                               const config::v1::PrefillConfig& config,
                                                               const base::Clock& clock);
  virtual ~PrefillWorker() = default;
  virtual runtime::PrefillEngine& engine() = 0;
  virtual grpc::Service& service() = 0;
  virtual void FillMetrics(common::MetricPage& page) const = 0;
  virtual bool live() const = 0;  // the step loop moves
};

}  // namespace ridgefill::prefill
