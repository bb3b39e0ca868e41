#include <CLI/CLI.hpp>

#include "services/cli/command.h"

namespace ridgefill::cli {
namespace {

// CLI11 stores into variables; messages have setters.
template <typename Value>
void Bind(CLI::App& command, const char* name, std::function<void(const Value&)> set, const char* type,
          const char* help) {
  command.add_option_function<Value>(name, std::move(set), help)->type_name(type);
}

}  // namespace

void AddModelFlags(CLI::App& command, ModelFlags& flags) {
  Bind<std::string>(
      command, "--model,-m", [&flags](const std::string& v) { flags.source.set_model(v); }, "NAME|PATH",
      "A .gguf file, a Hugging Face folder, or a name under $RIDGEFILL_HOME/models");
  Bind<std::string>(
      command, "--maps", [&flags](const std::string& v) { flags.source.set_maps(v); }, "NAME|PATH|none",
      "Map set; default: $RIDGEFILL_HOME/maps/<model name> if there is one");
  Bind<std::string>(
      command, "--backend", [&flags](const std::string& v) { flags.backend.set_kind(v); }, "KIND",
      "cpu (default), cuda or reference");
  Bind<int>(
      command, "--threads", [&flags](const int& v) { flags.backend.set_threads(v); }, "N",
      "CPU threads; default: every core that the process may use");
  Bind<std::string>(
      command, "--isa", [&flags](const std::string& v) { flags.backend.set_isa(v); }, "ISA",
      "avx2, avx512 or avx512_bf16; default: the best that the machine has");
}

}  // namespace ridgefill::cli
