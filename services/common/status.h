// absl::Status to and from grpc::Status, with google.rpc details beside the code (docs/architecture.md,
// "Errors").
//
// Every error that leaves a service has an ErrorInfo; one about a request field has a BadRequest as well, and
// RESOURCE_EXHAUSTED and UNAVAILABLE, which are worth trying again, a RetryInfo. Pure functions.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ridgefill::common {

inline constexpr absl::string_view kErrorDomain = "ridgefill.dev";
// Metadata key of a base::Error whose value, in milliseconds, becomes RetryInfo.retry_delay.
inline constexpr absl::string_view kRetryAfterMs = "retry_after_ms";

grpc::Status ToGrpcStatus(const absl::Status& status);
// Bytes from a peer: details that do not parse, or are of another domain, are left out.
absl::Status FromGrpcStatus(const grpc::Status& status);

// "OK", "INVALID_ARGUMENT", ...: for logs and metrics.
absl::string_view CodeName(absl::StatusCode code);

}  // namespace ridgefill::common
