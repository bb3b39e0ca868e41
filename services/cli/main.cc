// ridgefill: serve, generate, fit, inspect, bench.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "services/cli/command.h"
#include "services/common/model_files.h"
#include "services/common/process.h"

int main(int argc, char** argv) {
  using namespace ridgefill;
  common::TuneMalloc();
  CLI::App app(
      "RidgeFill Serve: inference for long prompts. The upper layers' K and V of most prompt rows come from "
      "a ridge\n"
      "regression instead of the layers themselves; every request may ask for EXACT instead.\n\n"
      "Models and map sets are found by path, or by name under $RIDGEFILL_HOME (default ~/.cache/ridgefill).",
      "ridgefill");
  app.require_subcommand(1);
  app.set_version_flag("--version", RIDGEFILL_VERSION);
  cli::Context context;
  context.home = common::HomeFolder(std::getenv("RIDGEFILL_HOME"), std::getenv("HOME"));
  cli::AddServe(app, context);
  cli::AddGenerate(app, context);
  cli::AddFit(app, context);
  cli::AddInspect(app, context);
  cli::AddBench(app, context);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = context.run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "ridgefill: %s\n", std::string(status.message()).c_str());
  return 1;
}
