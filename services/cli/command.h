// The `ridgefill` program: one file per subcommand, each registering itself on the CLI11 app that main.cc
// makes.
//
// Results go to stdout (JSON lines or text), everything else (progress, logs) to stderr. A command's error is
// printed as one line that names what was wrong; the exit status is 1 then, 2 for arguments that CLI11
// refuses.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "ridgefill/config/v1/config.pb.h"

namespace CLI {
class App;
}

namespace ridgefill::cli {

struct Context {
  std::string home;  // common::HomeFolder()
  // The chosen subcommand; main runs it after parsing.
  std::function<absl::Status()> run;
};

void AddServe(CLI::App& app, Context& context);
void AddGenerate(CLI::App& app, Context& context);
void AddFit(CLI::App& app, Context& context);
void AddInspect(CLI::App& app, Context& context);
void AddBench(CLI::App& app, Context& context);

// --model, --maps, --threads, --backend, --isa: the same words on every subcommand.
struct ModelFlags {
  config::v1::ModelSourceConfig source;
  config::v1::BackendConfig backend;
};
void AddModelFlags(CLI::App& command, ModelFlags& flags);

}  // namespace ridgefill::cli
