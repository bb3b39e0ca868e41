// The router: everything that its service works with, and the service itself. What the program
// ridgefill-router and `ridgefill serve` are made of.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "ridgefill/config/v1/config.pb.h"
#include "services/common/loaded_model.h"
#include "services/common/monitoring.h"

namespace grpc {
class Channel;
class Service;
}  // namespace grpc

namespace ridgefill::router {

inline constexpr char kServiceName[] = "ridgefill.v1.GenerationService";

struct WorkerAddress {
  std::string address;  // prefill: what decode workers call it by
  std::shared_ptr<grpc::Channel> channel;
};

struct RouterOptions {
  config::v1::RouterConfig config;
  std::vector<WorkerAddress> prefill, decode;
  std::string model;  // the name that clients see
  base::ModelIdentity identity;
  int vocab_size = 0;                               // rows of the model's logits
  int64_t context_tokens = 0;                       // of the model
  const tokenizer::Tokenizer* tokenizer = nullptr;  // borrowed
  const base::Clock* clock = nullptr;               // borrowed
};

// Thread-safe.
class Router {
 public:
  // Returns when every worker has been asked for its health once, or after five seconds.
  static std::unique_ptr<Router> Create(const RouterOptions& options);
  virtual ~Router() = default;
  virtual grpc::Service& service() = 0;
  // Refuses new requests and waits until none is in flight, at most until `deadline`.
  virtual void Drain(absl::Time deadline) = 0;
  virtual std::vector<const prometheus::Collectable*> metrics() const = 0;
  // The thread that checks workers and expires waiting requests still comes round.
  virtual bool live() const = 0;
};

}  // namespace ridgefill::router
