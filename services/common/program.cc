#include "services/common/program.h"

#include "engine/base/status.h"
#include "services/common/monitoring.h"
#include "services/common/server.h"

namespace ridgefill::common {

absl::Status Serve(const config::v1::ListenConfig& listen, const Program& program) {
  RF_ASSIGN_OR_RETURN(const auto server,
                      Server::Start(MakeServerOptions(listen, {program.service}, {program.service_name})));
  RF_ASSIGN_OR_RETURN(const auto monitoring,
                      Monitoring::Start({listen.metrics_address(), program.metrics, program.live,
                                         [&] { return server->serving(); }}));
  ServeUntilSignal(*server, absl::Seconds(listen.drain_seconds()), program.drain);
  return absl::OkStatus();
}

}  // namespace ridgefill::common
