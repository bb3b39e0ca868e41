// A gRPC server with what every program of the project has: health by service name (with Watch), reflection,
// message limits, keepalive, and a drain on SIGTERM.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ridgefill/config/v1/config.pb.h"

namespace grpc {
class Channel;
class Service;
}  // namespace grpc

namespace ridgefill::common {

struct ServerOptions {
  std::string address;  // empty: reached by InProcessChannel only
  int max_message_mb = 64;
  std::vector<grpc::Service*> services;   // borrowed; must outlive the server
  std::vector<std::string> health_names;  // full service names, beside "" for the whole server
};

ServerOptions MakeServerOptions(const config::v1::ListenConfig& listen, std::vector<grpc::Service*> services,
                                std::vector<std::string> health_names);

// Thread-safe. The destructor cancels what still runs.
class Server {
 public:
  // Listens but is not SERVING yet. UNAVAILABLE (ADDRESS_IN_USE) when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  virtual ~Server() = default;

  virtual void SetServing(bool serving) = 0;
  virtual bool serving() const = 0;
  virtual int port() const = 0;  // the one bound, where the address asked for port 0
  virtual std::shared_ptr<grpc::Channel> InProcessChannel() = 0;
  // No new calls; waits for those that run, at most until `deadline`, then cancels them.
  virtual void Shutdown(absl::Time deadline) = 0;
};

// Serves until SIGTERM or SIGINT. Then: not SERVING; `drain(deadline)` until what runs is done; shut down
// within a second: streams that never end (health Watch, reflection) do not hold it up.
void ServeUntilSignal(Server& server, absl::Duration drain_time,
                      const std::function<void(absl::Time)>& drain);

}  // namespace ridgefill::common
