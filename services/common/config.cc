#include "services/common/config.h"

#include <algorithm>
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
  Checker& Share(absl::string_view field, float value, float high) {
    if (status_.ok() && !(value >= 0 && value <= high)) {
      Fail(field, absl::StrCat("must be in [0, ", high, "], got ", value));
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

// A field given as 0 is not left out.
template <typename Config, typename Value>
void Default(Config& config, bool (Config::*has)() const, void (Config::*set)(Value), Value value) {
  if (!(config.*has)()) (config.*set)(value);
}

void FillListen(ListenConfig& listen, const char* address) {
  if (listen.address().empty()) listen.set_address(address);
  Default(listen, &ListenConfig::has_max_message_mb, &ListenConfig::set_max_message_mb, 64);
  Default(listen, &ListenConfig::has_drain_seconds, &ListenConfig::set_drain_seconds, 30);
}

void FillBackend(BackendConfig& backend) {
  if (backend.kind().empty()) backend.set_kind("cpu");
}

void FillSizes(PrefillConfig& config) {
  Default(config, &PrefillConfig::has_chunk_tokens, &PrefillConfig::set_chunk_tokens, 512);
  Default(config, &PrefillConfig::has_max_queued, &PrefillConfig::set_max_queued, 64);
  Default<PrefillConfig, int64_t>(config, &PrefillConfig::has_sink_buffer_mb,
                                  &PrefillConfig::set_sink_buffer_mb, 32);
}

void FillSizes(DecodeConfig& config) {
  Default<DecodeConfig, int64_t>(config, &DecodeConfig::has_kv_memory_mb, &DecodeConfig::set_kv_memory_mb,
                                 1024);
  Default(config, &DecodeConfig::has_max_running, &DecodeConfig::set_max_running, 32);
  Default(config, &DecodeConfig::has_max_queued, &DecodeConfig::set_max_queued, 256);
  Default(config, &DecodeConfig::has_queue_timeout_seconds, &DecodeConfig::set_queue_timeout_seconds, 60);
  Default(config, &DecodeConfig::has_piece_tokens, &DecodeConfig::set_piece_tokens, 256);
  Default<DecodeConfig, int64_t>(config, &DecodeConfig::has_receive_buffer_mb,
                                 &DecodeConfig::set_receive_buffer_mb, 32);
}

constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int64_t kMaxSplit = 10'000;
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

// What `serve` would not look at.
absl::Status CheckParts(const PrefillConfig& prefill, const DecodeConfig& decode) {
  const struct {
    bool set;
    const char *field, *why;
  } unused[] = {
      {prefill.has_listen(), "prefill.listen", "`serve` has one address: set router.listen"},
      {prefill.has_source(), "prefill.source", "`serve` has one model: set router.source"},
      {prefill.has_backend(), "prefill.backend", "`serve` has one backend: set `backend`"},
      {prefill.context_tokens() != 0, "prefill.context_tokens",
       "`serve` has one context: set decode.context_tokens"},
      {prefill.lower_layers_only(), "prefill.lower_layers_only",
       "`serve` loads one model for all three parts; run ridgefill-prefill by itself for that"},
      {decode.has_listen(), "decode.listen", "`serve` has one address: set router.listen"},
      {decode.has_source(), "decode.source", "`serve` has one model: set router.source"},
      {decode.has_backend(), "decode.backend", "`serve` has one backend: set `backend`"},
      {!decode.transport().empty(), "decode.transport",
       "`serve` has one process; run ridgefill-decode by itself for another transport"},
  };
  Checker check("");
  for (const auto& [set, field, why] : unused) {
    if (set) check.Fail(field, absl::StrCat("must be left out: ", why));
  }
  return check.status();
}

absl::Status CheckRouterSizes(const RouterConfig& config, const std::string& prefix) {
  const auto& policy = config.policy();
  Checker check(prefix);
  if (policy.wire_form() != "kv" && policy.wire_form() != "hidden") {
    check.Fail("policy.wire_form", absl::StrCat("must be kv or hidden, got \"", policy.wire_form(), "\""));
  }
  return check.Share("policy.max_share", policy.max_share(), 1)
      .Share("policy.share", policy.share(), policy.max_share())
      .Range("policy.auto_min_tokens", policy.auto_min_tokens(), 1, kMaxTokens)
      .Range("policy.local_max_tokens", policy.local_max_tokens(), 1, kMaxTokens)
      .Range("policy.tail", policy.tail(), 0, kMaxTokens)
      .Range("policy.speed_split", policy.speed_split(), 0, kMaxSplit)
      .Range("policy.quality_split", policy.quality_split(), 0, kMaxSplit)
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
  FillSizes(config);
}

void FillDefaults(DecodeConfig& config) {
  FillListen(*config.mutable_listen(), "127.0.0.1:7402");
  FillBackend(*config.mutable_backend());
  FillSizes(config);
  if (config.transport().empty()) config.set_transport("grpc");
}

void FillDefaults(RouterConfig& config) {
  FillListen(*config.mutable_listen(), "127.0.0.1:7400");
  auto& policy = *config.mutable_policy();
  Default(policy, &config::v1::PolicyConfig::has_auto_min_tokens,
          &config::v1::PolicyConfig::set_auto_min_tokens, 2048);
  Default(policy, &config::v1::PolicyConfig::has_local_max_tokens,
          &config::v1::PolicyConfig::set_local_max_tokens, 256);
  Default(policy, &config::v1::PolicyConfig::has_max_share, &config::v1::PolicyConfig::set_max_share, 0.25f);
  Default(policy, &config::v1::PolicyConfig::has_share, &config::v1::PolicyConfig::set_share,
          std::min(0.25f, policy.max_share()));
  if (policy.wire_form().empty()) policy.set_wire_form("kv");
  Default(config, &RouterConfig::has_max_in_flight, &RouterConfig::set_max_in_flight, 256);
  Default(config, &RouterConfig::has_max_queued, &RouterConfig::set_max_queued, 256);
  Default(config, &RouterConfig::has_queue_timeout_seconds, &RouterConfig::set_queue_timeout_seconds, 30);
  Default(config, &RouterConfig::has_default_deadline_seconds, &RouterConfig::set_default_deadline_seconds,
          600);
  Default(config, &RouterConfig::has_max_prompt_bytes, &RouterConfig::set_max_prompt_bytes, 16 << 20);
  Default(config, &RouterConfig::has_worker_check_ms, &RouterConfig::set_worker_check_ms, 250);
}

void FillDefaults(ServeConfig& config) {
  FillDefaults(*config.mutable_router());
  FillBackend(*config.mutable_backend());
  // Nothing but these is the parts' own: what else is set in them, Validate refuses.
  FillSizes(*config.mutable_prefill());
  FillSizes(*config.mutable_decode());
}

DecodeConfig LocalDecode(const ServeConfig& config) {
  DecodeConfig decode = config.decode();
  *decode.mutable_listen() = config.router().listen();
  *decode.mutable_source() = config.router().source();
  *decode.mutable_backend() = config.backend();
  decode.set_transport("local");
  return decode;
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
  RF_RETURN_IF_ERROR(CheckParts(config.prefill(), config.decode()));
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
