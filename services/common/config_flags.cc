#include "services/common/config_flags.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <type_traits>
#include <utility>

#include "absl/strings/str_split.h"
#include "engine/base/status.h"
#include "services/common/config.h"

namespace ridgefill::common {
namespace {

using config::v1::BackendConfig;
using config::v1::DecodeConfig;
using config::v1::ListenConfig;
using config::v1::ModelSourceConfig;
using config::v1::PolicyConfig;
using config::v1::PrefillConfig;
using config::v1::RouterConfig;
using config::v1::ServeConfig;

// Where each program keeps the parts that all have.
template <typename Config>
ListenConfig& Listen(Config& config) {
  return *config.mutable_listen();
}
ListenConfig& Listen(ServeConfig& config) { return *config.mutable_router()->mutable_listen(); }

template <typename Config>
ModelSourceConfig& Source(Config& config) {
  return *config.mutable_source();
}
ModelSourceConfig& Source(ServeConfig& config) { return *config.mutable_router()->mutable_source(); }

RouterConfig& Router(RouterConfig& config) { return config; }
RouterConfig& Router(ServeConfig& config) { return *config.mutable_router(); }
DecodeConfig& Decode(DecodeConfig& config) { return config; }
DecodeConfig& Decode(ServeConfig& config) { return *config.mutable_decode(); }
PrefillConfig& Prefill(PrefillConfig& config) { return config; }
PrefillConfig& Prefill(ServeConfig& config) { return *config.mutable_prefill(); }

template <typename Config, typename Part>
constexpr bool kHas = std::is_same_v<Config, Part> || std::is_same_v<Config, ServeConfig>;

template <typename Config>
constexpr bool kHasWorkers = std::is_same_v<Config, RouterConfig>;

void SetContext(PrefillConfig& config, int64_t tokens) { config.set_context_tokens(tokens); }
void SetContext(DecodeConfig& config, int64_t tokens) { config.set_context_tokens(tokens); }
void SetContext(ServeConfig& config, int64_t tokens) { config.mutable_decode()->set_context_tokens(tokens); }
void SetKvMemory(PrefillConfig& config, int64_t mb) { config.set_kv_memory_mb(mb); }
void SetKvMemory(DecodeConfig& config, int64_t mb) { config.set_kv_memory_mb(mb); }
void SetKvMemory(ServeConfig& config, int64_t mb) { config.mutable_decode()->set_kv_memory_mb(mb); }

}  // namespace

template <typename Config>
ConfigFlags<Config>::ConfigFlags(CLI::App& app) : app_(app) {
  AddCommon();
  AddOwn();
}

template <typename Config>
template <typename Value>
void ConfigFlags<Config>::Add(const char* name, const char* type, const char* help,
                              std::function<void(Config&, const Value&)> set) {
  const std::function<void(const Value&)> on_value = [this, set = std::move(set)](const Value& value) {
    setters_.push_back([set, value](Config& config) { set(config, value); });
  };
  auto* option = app_.add_option_function<Value>(name, on_value, help)->type_name(type)->group(group_);
  if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
    option->delimiter(',');
  } else {
    option->take_last();  // a wrapper script's flags can be overridden
  }
}

template <typename Config>
void ConfigFlags<Config>::AddCommon() {
  app_.add_option("--config", path_, "JSON file with the fields of this program's configuration message")
      ->type_name("FILE")
      ->group("Configuration");
  app_.add_flag("--print_config", print_config_, "Print the configuration that would be used, then exit")
      ->group("Configuration");
  group_ = "Model";
  Add<std::string>("--model", "MODEL",
                   "A .gguf file, a Hugging Face folder, or a name under $RIDGEFILL_HOME/models",
                   [](Config& c, const std::string& v) { Source(c).set_model(v); });
  group_ = "Network";
  Add<std::string>("--listen", "HOST:PORT", "Address of the gRPC server",
                   [](Config& c, const std::string& v) { Listen(c).set_address(v); });
  Add<std::string>("--metrics_listen", "HOST:PORT",
                   "Address of /metrics, /healthz and /readyz (default: none)",
                   [](Config& c, const std::string& v) { Listen(c).set_metrics_address(v); });
  Add<int>("--drain_seconds", "N", "How long running requests may take to finish after SIGTERM (default 30)",
           [](Config& c, const int& v) { Listen(c).set_drain_seconds(v); });
}

// What prefill and decode workers share.
template <typename Config>
void ConfigFlags<Config>::AddWorker() {
  if constexpr (kHas<Config, PrefillConfig> || kHas<Config, DecodeConfig>) {
    group_ = "Model";
    // One text, so that a later flag replaces an earlier one.
    Add<std::string>(
        "--maps", "FOLDER,...",
        "Map sets of different splits, the default one first; default: $RIDGEFILL_HOME/maps/<model "
        "name> if there is one; `none`: no maps",
        [](Config& c, const std::string& v) {
          const std::vector<std::string> maps = absl::StrSplit(v, ',');
          *Source(c).mutable_maps() = {maps.begin(), maps.end()};
        });
    group_ = "Capacity";
    Add<std::string>("--backend", "KIND", "cpu (default), cuda or reference",
                     [](Config& c, const std::string& v) { c.mutable_backend()->set_kind(v); });
    Add<int>("--threads", "N", "Threads of the cpu backend (default: every core that the process may use)",
             [](Config& c, const int& v) { c.mutable_backend()->set_threads(v); });
    Add<std::string>("--isa", "NAME",
                     "avx2, avx512, avx512_bf16 or amx_bf16 (default: the best this machine has)",
                     [](Config& c, const std::string& v) { c.mutable_backend()->set_isa(v); });
    Add<int64_t>("--context_tokens", "N", "Longest prompt plus answer (default: the model's context)",
                 [](Config& c, const int64_t& v) { SetContext(c, v); });
    Add<int64_t>("--kv_memory_mb", "N", "Memory for the KV cache",
                 [](Config& c, const int64_t& v) { SetKvMemory(c, v); });
  }
}

template <typename Config>
void ConfigFlags<Config>::AddOwn() {
  AddWorker();
  if constexpr (kHas<Config, PrefillConfig>) {
    Add<int>("--chunk_tokens", "N", "Prompt rows of one prefill step (default 512)",
             [](Config& c, const int& v) { Prefill(c).set_chunk_tokens(v); });
  }
  if constexpr (std::is_same_v<Config, PrefillConfig>) {
    Add<bool>("--lower_layers_only", "BOOL", "Load only the layers up to the split of the map set",
              [](Config& c, const bool& v) { c.set_lower_layers_only(v); });
  }
  if constexpr (kHas<Config, DecodeConfig>) {
    Add<int>("--max_running", "N", "Requests decoded together (default 32)",
             [](Config& c, const int& v) { Decode(c).set_max_running(v); });
  }
  if constexpr (kHasWorkers<Config>) {
    group_ = "Network";
    Add<std::vector<std::string>>("--prefill_workers", "HOST:PORT,...", "Prefill workers",
                                  [](Config& c, const std::vector<std::string>& v) {
                                    c.mutable_prefill_workers()->Assign(v.begin(), v.end());
                                  });
    Add<std::vector<std::string>>("--decode_workers", "HOST:PORT,...", "Decode workers",
                                  [](Config& c, const std::vector<std::string>& v) {
                                    c.mutable_decode_workers()->Assign(v.begin(), v.end());
                                  });
  }
  if constexpr (kHas<Config, RouterConfig>) {
    group_ = "Policy";
    Add<int>("--auto_min_tokens", "N", "AUTO runs SPEED from this prompt length on (default 2048)",
             [](Config& c, const int& v) { Router(c).mutable_policy()->set_auto_min_tokens(v); });
    Add<int>("--local_max_tokens", "N",
             "Up to this length the decode worker prefills by itself (default 256)",
             [](Config& c, const int& v) { Router(c).mutable_policy()->set_local_max_tokens(v); });
    Add<bool>("--forbid_filled", "BOOL", "AUTO runs EXACT; SPEED and QUALITY are refused",
              [](Config& c, const bool& v) { Router(c).mutable_policy()->set_forbid_filled(v); });
    Add<float>("--share", "X",
               "Share of a prompt's rows before its tail that QUALITY may select (default 0.25, or max_share "
               "where that is less)",
               [](Config& c, const float& v) { Router(c).mutable_policy()->set_share(v); });
    Add<float>("--max_share", "X", "The most that a request may ask for (default 0.25)",
               [](Config& c, const float& v) { Router(c).mutable_policy()->set_max_share(v); });
    Add<int>("--tail", "N", "Last rows that run exactly in SPEED and QUALITY (default: the map set's)",
             [](Config& c, const int& v) { Router(c).mutable_policy()->set_tail(v); });
    Add<int>("--speed_split", "S",
             "Split of SPEED and AUTO where a request names none (default: the workers' default map set's)",
             [](Config& c, const int& v) { Router(c).mutable_policy()->set_speed_split(v); });
    Add<int>("--quality_split", "S", "The same of QUALITY",
             [](Config& c, const int& v) { Router(c).mutable_policy()->set_quality_split(v); });
    Add<std::string>(
        "--wire_form", "FORM",
        "Who fills in SPEED and QUALITY: kv (default) the prefill workers, hidden the decode workers",
        [](Config& c, const std::string& v) { Router(c).mutable_policy()->set_wire_form(v); });
    Add<int>("--max_in_flight", "N", "Requests admitted together (default 256)",
             [](Config& c, const int& v) { Router(c).set_max_in_flight(v); });
    Add<int>("--max_queued", "N",
             "Requests waiting for admission (default 256); one more is RESOURCE_EXHAUSTED",
             [](Config& c, const int& v) { Router(c).set_max_queued(v); });
  }
}

template <typename Config>
absl::StatusOr<Config> ConfigFlags<Config>::Load() const {
  Config config;
  RF_RETURN_IF_ERROR(LoadConfig(path_, config));
  for (const auto& set : setters_) set(config);
  FillDefaults(config);
  if (print_config_) std::fputs(PrintConfig(config).c_str(), stdout);  // what is missing shows there too
  RF_RETURN_IF_ERROR(Validate(config));
  return config;
}

template <typename Config>
CommandLine<Config> ParseCommandLine(int argc, char** argv, const char* description) {
  CommandLine<Config> line;
  CLI::App app(description);
  ConfigFlags<Config> flags(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    line.exit_code = app.exit(error);
    return line;
  }
  auto config = flags.Load();
  if (!config.ok()) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), std::string(config.status().message()).c_str());
    line.exit_code = 2;
    return line;
  }
  line.config = *std::move(config);
  if (flags.print_config()) line.exit_code = 0;
  return line;
}

template class ConfigFlags<PrefillConfig>;
template class ConfigFlags<DecodeConfig>;
template class ConfigFlags<RouterConfig>;
template class ConfigFlags<ServeConfig>;
template CommandLine<PrefillConfig> ParseCommandLine(int, char**, const char*);
template CommandLine<DecodeConfig> ParseCommandLine(int, char**, const char*);
template CommandLine<RouterConfig> ParseCommandLine(int, char**, const char*);

}  // namespace ridgefill::common
