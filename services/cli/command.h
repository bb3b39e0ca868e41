// The subcommands of `ridgefill`. Each Add...() defines one with its flags; `run` becomes what the chosen one
// does.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ridgefill/config/v1/config.pb.h"

namespace CLI {
class App;
}

namespace ridgefill::cli {

struct Environment {
  std::string home;  // common::HomeFolder()
};
using Run = std::function<absl::Status(const Environment&)>;

void AddServe(CLI::App& app, Run& run);
void AddGenerate(CLI::App& app, Run& run);
void AddFit(CLI::App& app, Run& run);
void AddInspect(CLI::App& app, Run& run);
void AddEval(CLI::App& app, Run& run);
void AddBench(CLI::App& app, Run& run);

// The flags of commands that load a model into their own process.
struct ModelFlags {
  std::string model, backend = "cpu", isa;
  std::vector<std::string> maps;
  int threads = 0;
  int64_t context_tokens = 0;
  std::optional<int64_t> kv_memory_mb;

  void AddTo(CLI::App& app);
  // Of commands that serve nothing: without context_tokens and kv_memory_mb.
  void AddSourceTo(CLI::App& app);
  // The three services in one process, listening nowhere.
  config::v1::ServeConfig ToServeConfig() const;
};

}  // namespace ridgefill::cli
