#include <CLI/CLI.hpp>

#include "services/cli/command.h"

namespace ridgefill::cli {

namespace {
constexpr char kGroup[] = "Model";
}

void ModelFlags::AddSourceTo(CLI::App& app) {
  const char* const group = kGroup;
  app.add_option("--model", model,
                 "A .gguf file, a Hugging Face folder, or a name under $RIDGEFILL_HOME/models")
      ->type_name("MODEL")
      ->group(group);
  app.add_option(
         "--maps", maps,
         "Map sets of different splits, the default one first; default: $RIDGEFILL_HOME/maps/<model name> "
         "if there is one; `none`: no maps")
      ->type_name("FOLDER,...")
      ->delimiter(',')
      ->group(group);
  app.add_option("--backend", backend, "cpu, cuda or reference")
      ->capture_default_str()
      ->type_name("KIND")
      ->group(group);
  app.add_option("--threads", threads,
                 "Threads of the cpu backend (default: every core that the process may use)")
      ->type_name("N")
      ->group(group);
  app.add_option("--isa", isa, "avx2, avx512, avx512_bf16 or amx_bf16 (default: the best this machine has)")
      ->type_name("NAME")
      ->group(group);
}

void ModelFlags::AddTo(CLI::App& app) {
  const char* const group = kGroup;
  AddSourceTo(app);
  app.add_option("--context_tokens", context_tokens,
                 "Longest prompt plus answer (default: the model's context)")
      ->type_name("N")
      ->group(group);
  app.add_option("--kv_memory_mb", kv_memory_mb, "Memory for the KV cache (default 1024)")
      ->type_name("N")
      ->group(group);
}

config::v1::ServeConfig ModelFlags::ToServeConfig() const {
  config::v1::ServeConfig config;
  config.mutable_router()->mutable_source()->set_model(model);
  *config.mutable_router()->mutable_source()->mutable_maps() = {maps.begin(), maps.end()};
  config.mutable_backend()->set_kind(backend);
  config.mutable_backend()->set_isa(isa);
  config.mutable_backend()->set_threads(threads);
  config.mutable_decode()->set_context_tokens(context_tokens);
  if (kv_memory_mb.has_value()) config.mutable_decode()->set_kv_memory_mb(*kv_memory_mb);
  return config;
}

}  // namespace ridgefill::cli
