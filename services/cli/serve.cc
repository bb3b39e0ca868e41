// `ridgefill serve`.
#include <CLI/CLI.hpp>
#include <memory>

#include "absl/time/time.h"
#include "engine/base/status.h"
#include "services/cli/command.h"
#include "services/cli/trio.h"
#include "services/common/config_flags.h"
#include "services/common/monitoring.h"
#include "services/common/server.h"
#include "services/router/router.h"

namespace ridgefill::cli {
namespace {

absl::Status Serve(const config::v1::ServeConfig& config, const Environment& environment) {
  RF_ASSIGN_OR_RETURN(const auto trio, Trio::Create(config, environment.home));
  const auto& listen = config.router().listen();
  RF_ASSIGN_OR_RETURN(const auto server, common::Server::Start(common::MakeServerOptions(
                                             listen, {&trio->service()}, {router::kServiceName})));
  RF_ASSIGN_OR_RETURN(
      const auto monitoring,
      common::Monitoring::Start({listen.metrics_address(), trio->metrics(), [&] { return trio->live(); },
                                 [&] { return server->serving(); }}));
  common::ServeUntilSignal(*server, absl::Seconds(listen.drain_seconds()),
                           [&](absl::Time deadline) { trio->Drain(deadline); });
  return absl::OkStatus();
}

}  // namespace

void AddServe(CLI::App& app, Run& run) {
  CLI::App* const command = app.add_subcommand("serve", "Router, prefill and decode worker in one process");
  command->footer(
      "Example\n"
      "  ridgefill serve --model smollm2-135m-instruct --listen 127.0.0.1:7400 --metrics_listen "
      "127.0.0.1:9400\n\n"
      "The configuration file holds the fields of ridgefill.config.v1.ServeConfig as JSON. SIGTERM: health "
      "turns\n"
      "NOT_SERVING, what runs is finished (--drain_seconds), exit status 0.");
  const auto flags = std::make_shared<common::ConfigFlags<config::v1::ServeConfig>>(*command);
  command->callback([flags, &run] {
    run = [flags](const Environment& environment) -> absl::Status {
      RF_ASSIGN_OR_RETURN(const auto config, flags->Load());
      return flags->print_config() ? absl::OkStatus() : Serve(config, environment);
    };
  });
}

}  // namespace ridgefill::cli
