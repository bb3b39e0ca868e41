// What the main() of a service program does around its own work.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ridgefill/config/v1/config.pb.h"
#include "services/common/config_flags.h"
#include "services/common/process.h"

namespace grpc {
class Service;
}
namespace prometheus {
class Collectable;
}

namespace ridgefill::common {

struct Program {
  grpc::Service* service = nullptr;
  const char* service_name = nullptr;                   // for health checks
  std::vector<const prometheus::Collectable*> metrics;  // of /metrics
  std::function<bool()> live;                           // the program's own step loop moves
  std::function<void(absl::Time)> drain;                // waits for what runs, at most until then
};

// Serves gRPC, health and metrics until SIGTERM or SIGINT, then drains. UNAVAILABLE (ADDRESS_IN_USE) when an
// address cannot be bound.
absl::Status Serve(const config::v1::ListenConfig& listen, const Program& program);

// Reads flags and configuration and does `run` with `home`, the folder of models and maps; what main()
// returns.
template <typename Config>
int ProgramMain(int argc, char** argv, const char* name, const char* description, const std::string& home,
                absl::Status (*run)(const Config& config, const std::string& home)) {
  TuneMalloc();
  const auto line = ParseCommandLine<Config>(argc, argv, description);
  return line.exit_code >= 0 ? line.exit_code : ExitCode(name, run(line.config, home));
}

}  // namespace ridgefill::common
