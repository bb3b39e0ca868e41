// ridgefill: everything in one program.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "engine/base/log.h"
#include "services/cli/command.h"
#include "services/common/model_files.h"
#include "services/common/process.h"

int main(int argc, char** argv) {
  using namespace ridgefill;
  common::TuneMalloc();
  CLI::App app(
      "ridgefill: language models with ridge-filled prefill. Long prompts run the whole model only for their "
      "last rows "
      "and a few outliers; the rest runs the lower layers, and fitted maps supply the late layers' K and V.");
  app.name("ridgefill");
  app.require_subcommand(1);
  app.set_version_flag("--version", RIDGEFILL_VERSION);
  app.get_formatter()->column_width(34);
  app.footer(
      "Environment\n"
      "  RIDGEFILL_HOME   where models and map sets are kept by name (default: ~/.cache/ridgefill)\n\n"
      "`ridgefill COMMAND --help` describes a command. The same three services as separate programs:\n"
      "ridgefill-router, ridgefill-prefill, ridgefill-decode.");
  bool verbose = false;
  app.add_flag("--verbose", verbose,
               "Commands other than `serve`: log to standard error what services would log");
  cli::Run run;
  cli::AddServe(app, run);
  cli::AddGenerate(app, run);
  cli::AddFit(app, run);
  cli::AddInspect(app, run);
  cli::AddEval(app, run);
  cli::AddBench(app, run);
  const auto is_asked = [&](const CLI::App* command) { return command->check_name(argv[1]); };
  if (argc > 1 && argv[1][0] != '-' && std::as_const(app).get_subcommands(is_asked).empty()) {
    std::fprintf(stderr,
                 "ridgefill: unknown command '%s'; commands: serve, generate, fit, inspect, eval, bench\n",
                 argv[1]);
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  if (!verbose && !app.got_subcommand("serve")) base::SetLogThreshold(base::Severity::kWarning);
  const std::string home = common::HomeFolder(std::getenv("RIDGEFILL_HOME"), std::getenv("HOME"));
  return common::ExitCode("ridgefill", run({home}));
}
