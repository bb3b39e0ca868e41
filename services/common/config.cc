#include "services/common/config.h"

#include <cstdint>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/base/status.h"
#include "google/protobuf/util/json_util.h"

namespace ridgefill::common {
namespace {

using config::v1::BackendConfig;
using config::v1::DecodeConfig;
using config::v1::ListenConfig;
using config::v1::ModelSourceConfig;
using config::v1::PrefillConfig;
using config::v1::RouterConfig;
using config::v1::ServeConfig;

// Collects the first violation; Field() calls after it do nothing.
class Checker {
 public:
  explicit Checker(std::string prefix) : prefix_(std::move(prefix)) {}

  Checker& Range(absl::string_view field, int64_t value, int64_t low, int64_t high) {
    if (status_.ok() && (value < low || value > high)) {
      Fail(field, absl::StrCat("must be in [", low, ", ", high, "], got ", value));
    }
    return *this;
  }
  Checker& Fail(absl::string_view field, absl::string_view message) {
    if (status_.ok()) status_ = base::FieldError(absl::StrCat(prefix_, field), "CONFIG_VALUE", message);
    return *this;
  }
  Checker& Also(const absl::Status& status) {
    if (status_.ok()) status_ = status;
    return *this;
  }
  const absl::Status& status() const { return status_; }

 private:
  std::string prefix_;
  absl::Status status_;
};

template <typename Config, typename Value>
void Default(Config& config, Value (Config::*get)() const, void (Config::*set)(Value), Value value) {
  if ((config.*get)() == Value{}) (config.*set)(value);
}

void FillListen(ListenConfig& listen, const char* address) {
  if (listen.address().empty()) listen.set_address(address);
  Default(listen, &ListenConfig::max_message_mb, &ListenConfig::set_max_message_mb, 64);
  Default(listen, &ListenConfig::drain_seconds, &ListenConfig::set_drain_seconds, 30);
}

void FillBackend(BackendConfig& backend) {
  if (backend.kind().empty()) backend.set_kind("cpu");
}

constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int64_t kMaxMb = int64_t{1} << 24;

absl::Status CheckListen(const ListenConfig& listen, const std::string& prefix) {
  Checker check(prefix);
  check.Also(CheckAddress(prefix + "address", listen.address()));
  if (!listen.metrics_address().empty()) {
    check.Also(CheckAddress(prefix + "metrics_address", listen.metrics_address()));
  }
  return check.Range("max_message_mb", listen.max_message_mb(), 1, 2047)
      .Range("drain_seconds", listen.drain_seconds(), 1, 3600)
      .status();
}

absl::Status CheckSource(const ModelSourceConfig& source, const std::string& prefix) {
  Checker check(prefix);
  if (source.model().empty()) {
    check.Fail("model",
               "is required: a .gguf file, a Hugging Face folder or a name under $RIDGEFILL_HOME/models");
  }
  return check.status();
}

absl::Status CheckBackend(const BackendConfig& backend, const std::string& prefix) {
  Checker check(prefix);
  if (backend.kind() != "cpu" && backend.kind() != "cuda" && backend.kind() != "reference") {
    check.Fail("kind", absl::StrCat("must be cpu, cuda or reference, got \"", backend.kind(), "\""));
  }
  return check.Range("threads", backend.threads(), 0, 4096)
      .Range("device", backend.device(), 0, 1023)
      .status();
}

absl::Status CheckPrefillSizes(const PrefillConfig& config, const std::string& prefix) {
  Checker check(prefix);
  check.Range("context_tokens", config.context_tokens(), 0, kMaxTokens)
      .Range("kv_memory_mb", config.kv_memory_mb(), 0, kMaxMb)
      .Range("chunk_tokens", config.chunk_tokens(), 64, 65536)
      .Range("max_queued", config.max_queued(), 1, 1 << 20)
      .Range("sink_buffer_mb", config.sink_buffer_mb(), 1, kMaxMb);
  if (config.chunk_tokens() % 64 != 0)
    check.Fail("chunk_tokens", "must be a multiple of 64, the cache block");
  return check.status();
}

absl::Status CheckDecodeSizes(const DecodeConfig& config, const std::string& prefix) {
  Checker check(prefix);
  check.Range("context_tokens", config.context_tokens(), 0, kMaxTokens)
      .Range("kv_memory_mb", config.kv_memory_mb(), 1, kMaxMb)
      .Range("max_running", config.max_running(), 1, 4096)
      .Range("max_queued", config.max_queued(), 1, 1 << 20)
      .Range("queue_timeout_seconds", config.queue_timeout_seconds(), 1, 86400)
      .Range("piece_tokens", config.piece_tokens(), 1, 65536)
      .Range("receive_buffer_mb", config.receive_buffer_mb(), 1, kMaxMb);
  return check.status();
}

absl::Status CheckRouterSizes(const RouterConfig& config, const std::string& prefix) {
  const auto& policy = config.policy();
  return Checker(prefix)
      .Range("policy.auto_min_tokens", policy.auto_min_tokens(), 1, kMaxTokens)
      .Range("policy.local_max_tokens", policy.local_max_tokens(), 1, kMaxTokens)
      .Range("policy.tail", policy.tail(), 0, kMaxTokens)
      .Range("max_in_flight", config.max_in_flight(), 1, 1 << 20)
      .Range("max_queued", config.max_queued(), 1, 1 << 20)
      .Range("queue_timeout_seconds", config.queue_timeout_seconds(), 1, 86400)
      .Range("default_deadline_seconds", config.default_deadline_seconds(), 1, 86400)
      .Range("max_prompt_bytes", config.max_prompt_bytes(), 1, std::numeric_limits<int32_t>::max())
      .Range("worker_check_ms", config.worker_check_ms(), 10, 60'000)
      .status();
}

}  // namespace

absl::Status ParseConfig(absl::string_view json, google::protobuf::Message& config) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = false;
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(json.data(), json.size()), &config, options);
  if (parsed.ok()) return absl::OkStatus();
  return base::Error(
      absl::StatusCode::kInvalidArgument, "CONFIG_JSON",
      absl::StrCat(std::string(parsed.message()), " (fields of ", config.GetDescriptor()->full_name(), ")"));
}

absl::Status LoadConfig(const std::string& path, google::protobuf::Message& config) {
  if (path.empty()) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const std::string json, base::ReadFile(path));
  return base::WithContext(ParseConfig(json, config), path);
}

std::string PrintConfig(const google::protobuf::Message& config) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string out;
  (void)google::protobuf::util::MessageToJsonString(config, &out, options);
  return out;
}

void FillDefaults(PrefillConfig& config) {
  FillListen(*config.mutable_listen(), "127.0.0.1:7401");
  FillBackend(*config.mutable_backend());
  Default(config, &PrefillConfig::chunk_tokens, &PrefillConfig::set_chunk_tokens, 512);
  Default(config, &PrefillConfig::max_queued, &PrefillConfig::set_max_queued, 64);
  Default<PrefillConfig, int64_t>(config, &PrefillConfig::sink_buffer_mb, &PrefillConfig::set_sink_buffer_mb,
                                  32);
}

void FillDefaults(DecodeConfig& config) {
  FillListen(*config.mutable_listen(), "127.0.0.1:7402");
  FillBackend(*config.mutable_backend());
  Default<DecodeConfig, int64_t>(config, &DecodeConfig::kv_memory_mb, &DecodeConfig::set_kv_memory_mb, 1024);
  Default(config, &DecodeConfig::max_running, &DecodeConfig::set_max_running, 32);
  Default(config, &DecodeConfig::max_queued, &DecodeConfig::set_max_queued, 256);
  Default(config, &DecodeConfig::queue_timeout_seconds, &DecodeConfig::set_queue_timeout_seconds, 60);
  Default(config, &DecodeConfig::piece_tokens, &DecodeConfig::set_piece_tokens, 256);
  Default<DecodeConfig, int64_t>(config, &DecodeConfig::receive_buffer_mb,
                                 &DecodeConfig::set_receive_buffer_mb, 32);
  if (config.transport().empty()) config.set_transport("grpc");
}

void FillDefaults(RouterConfig& config) {
  FillListen(*config.mutable_listen(), "127.0.0.1:7400");
  auto& policy = *config.mutable_policy();
  Default(policy, &config::v1::PolicyConfig::auto_min_tokens, &config::v1::PolicyConfig::set_auto_min_tokens,
          2048);
  Default(policy, &config::v1::PolicyConfig::local_max_tokens,
          &config::v1::PolicyConfig::set_local_max_tokens, 256);
  Default(config, &RouterConfig::max_in_flight, &RouterConfig::set_max_in_flight, 256);
  Default(config, &RouterConfig::max_queued, &RouterConfig::set_max_queued, 256);
  Default(config, &RouterConfig::queue_timeout_seconds, &RouterConfig::set_queue_timeout_seconds, 30);
  Default(config, &RouterConfig::default_deadline_seconds, &RouterConfig::set_default_deadline_seconds, 600);
  Default(config, &RouterConfig::max_prompt_bytes, &RouterConfig::set_max_prompt_bytes, 16 << 20);
  Default(config, &RouterConfig::worker_check_ms, &RouterConfig::set_worker_check_ms, 250);
}

void FillDefaults(ServeConfig& config) {
  FillDefaults(*config.mutable_router());
  FillBackend(*config.mutable_backend());
  FillDefaults(*config.mutable_prefill());
  FillDefaults(*config.mutable_decode());
  for (auto* listen :
       {config.mutable_prefill()->mutable_listen(), config.mutable_decode()->mutable_listen()}) {
    *listen = config.router().listen();
  }
  config.mutable_decode()->set_transport("local");
}

absl::Status Validate(const PrefillConfig& config) {
  RF_RETURN_IF_ERROR(CheckListen(config.listen(), "listen."));
  RF_RETURN_IF_ERROR(CheckSource(config.source(), "source."));
  RF_RETURN_IF_ERROR(CheckBackend(config.backend(), "backend."));
  return CheckPrefillSizes(config, "");
}

absl::Status Validate(const DecodeConfig& config) {
  RF_RETURN_IF_ERROR(CheckListen(config.listen(), "listen."));
  RF_RETURN_IF_ERROR(CheckSource(config.source(), "source."));
  RF_RETURN_IF_ERROR(CheckBackend(config.backend(), "backend."));
  return CheckDecodeSizes(config, "");
}

absl::Status Validate(const RouterConfig& config) {
  RF_RETURN_IF_ERROR(CheckListen(config.listen(), "listen."));
  RF_RETURN_IF_ERROR(CheckSource(config.source(), "source."));
  if (config.decode_workers().empty()) {
    return base::FieldError("decode_workers", "CONFIG_VALUE", "at least one host:port is required");
  }
  for (const auto& address : config.decode_workers()) {
    RF_RETURN_IF_ERROR(CheckAddress("decode_workers", address));
  }
  for (const auto& address : config.prefill_workers()) {
    RF_RETURN_IF_ERROR(CheckAddress("prefill_workers", address));
  }
  return CheckRouterSizes(config, "");
}

absl::Status Validate(const ServeConfig& config) {
  RF_RETURN_IF_ERROR(CheckListen(config.router().listen(), "router.listen."));
  RF_RETURN_IF_ERROR(CheckSource(config.router().source(), "router.source."));
  if (!config.router().prefill_workers().empty() || !config.router().decode_workers().empty()) {
    return base::FieldError("router.prefill_workers", "CONFIG_VALUE",
                            "and router.decode_workers must be empty: `serve` has its own workers");
  }
  if (config.prefill().lower_layers_only()) {
    return base::FieldError("prefill.lower_layers_only", "CONFIG_VALUE",
                            "must be false: `serve` loads one model for all three parts");
  }
  RF_RETURN_IF_ERROR(CheckBackend(config.backend(), "backend."));
  RF_RETURN_IF_ERROR(CheckRouterSizes(config.router(), "router."));
  RF_RETURN_IF_ERROR(CheckPrefillSizes(config.prefill(), "prefill."));
  return CheckDecodeSizes(config.decode(), "decode.");
}

absl::Status CheckAddress(absl::string_view field, absl::string_view address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  // SimpleAtoi takes blanks and signs, a port has none.
  const bool ok = colon != absl::string_view::npos && colon > 0 && colon + 1 < address.size() &&
                  absl::ascii_isdigit(address[colon + 1]) &&
                  absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 0 && port <= 65535;
  if (ok) return absl::OkStatus();
  return base::FieldError(field, "CONFIG_VALUE",
                          absl::StrCat("must be host:port with a port in [0, 65535], got \"", address, "\""));
}

}  // namespace ridgefill::common
