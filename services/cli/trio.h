// Router, prefill and decode worker in one process, over one model on one backend. KV frames go through the
// in-process transport; the router reaches the workers by gRPC's in-process channel, so every line of the
// three daemons runs here too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "prometheus/collectable.h"
#include "ridgefill/config/v1/config.pb.h"
#include "services/common/loaded_model.h"

namespace grpc {
class Channel;
class Service;
}  // namespace grpc

namespace ridgefill::cli {

// Thread-safe.
class Trio {
 public:
  // `config` with defaults filled and validated. Returns when it can serve.
  static absl::StatusOr<std::unique_ptr<Trio>> Create(const config::v1::ServeConfig& config,
                                                      const std::string& home);
  virtual ~Trio() = default;

  virtual grpc::Service& service() = 0;  // the public API, for a server that listens
  // The public API without a socket.
  virtual std::shared_ptr<grpc::Channel> InProcessChannel() = 0;
  virtual const common::LoadedModel& model() const = 0;
  virtual std::vector<const prometheus::Collectable*> metrics() const = 0;
  virtual bool live() const = 0;
  virtual void Drain(absl::Time deadline) = 0;
};

}  // namespace ridgefill::cli
