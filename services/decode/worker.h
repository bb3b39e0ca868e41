// A decode worker: the engine over a loaded model, connected to its prefill workers, warmed up, with its gRPC
// service and its metrics. What the program ridgefill-decode and `ridgefill serve` are made of.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/runtime/decode_engine.h"
#include "engine/runtime/prefill_engine.h"
#include "ridgefill/config/v1/config.pb.h"
#include "services/common/loaded_model.h"
#include "services/common/monitoring.h"

namespace grpc {
class Service;
}

namespace ridgefill::decode {

inline constexpr char kServiceName[] = "ridgefill.v1.DecodeService";

// Thread-safe.
class DecodeWorker {
 public:
  // Returns after one small answer has been generated. `model`, `clock` and `local_prefill` (only for
  // transport "local", else null) must outlive the worker.
  static absl::StatusOr<std::unique_ptr<DecodeWorker>> Create(const common::LoadedModel& model,
                                                              const config::v1::DecodeConfig& config,
                                                              const base::Clock& clock,
                                                              runtime::PrefillEngine* local_prefill);
  virtual ~DecodeWorker() = default;
  virtual runtime::DecodeEngine& engine() = 0;
  virtual grpc::Service& service() = 0;
  virtual void FillMetrics(common::MetricPage& page) const = 0;
  virtual bool live() const = 0;  // the step loop moves
};

}  // namespace ridgefill::decode
