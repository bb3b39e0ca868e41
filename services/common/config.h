// A program's configuration: one proto message, read from JSON, flags on top, defaults for what is left out.
//
// Order: ParseConfig (file), the flags' own setters (config_flags.h), FillDefaults, Validate. Pure functions
// except for LoadConfig, which reads the file. Errors name the field by its path: `listen.drain_seconds`.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "ridgefill/config/v1/config.pb.h"

namespace ridgefill::common {

// INVALID_ARGUMENT (CONFIG_JSON) names the unknown field or the value that does not fit.
absl::Status ParseConfig(absl::string_view json, google::protobuf::Message& config);
// The same from a file; an empty path leaves `config` as it is.
absl::Status LoadConfig(const std::string& path, google::protobuf::Message& config);
// Every field, also those at their default, with names as in the proto.
std::string PrintConfig(const google::protobuf::Message& config);

// Values for fields that are left out or empty, as config.proto states them.
void FillDefaults(config::v1::PrefillConfig& config);
void FillDefaults(config::v1::DecodeConfig& config);
void FillDefaults(config::v1::RouterConfig& config);
void FillDefaults(config::v1::ServeConfig& config);

// The decode part of `serve` for its worker: with what the parts share, over the local transport.
config::v1::DecodeConfig LocalDecode(const config::v1::ServeConfig& config);

absl::Status Validate(const config::v1::PrefillConfig& config);
absl::Status Validate(const config::v1::DecodeConfig& config);
absl::Status Validate(const config::v1::RouterConfig& config);
absl::Status Validate(const config::v1::ServeConfig& config);

// "host:port" or "[v6]:port"; port 0 asks the system for a free one.
absl::Status CheckAddress(absl::string_view field, absl::string_view address);

}  // namespace ridgefill::common
