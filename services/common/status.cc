#include "services/common/status.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "engine/base/status.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace ridgefill::common {
namespace {

constexpr int64_t kDefaultRetryMs = 1000;

int64_t RetryMs(const base::ErrorDetail& detail) {
  for (const auto& [key, value] : detail.metadata) {
    int64_t ms = 0;
    if (key == kRetryAfterMs && absl::SimpleAtoi(value, &ms)) return std::clamp<int64_t>(ms, 1, 60'000);
  }
  return kDefaultRetryMs;
}

void AddRetryInfo(int64_t ms, google::rpc::Status& out) {
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(ms / 1000);
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(ms % 1000) * 1'000'000);
  out.add_details()->PackFrom(retry);
}

void AddBadRequest(const std::string& field, absl::string_view message, google::rpc::Status& out) {
  absl::ConsumePrefix(&message, field + ": ");
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field(field);
  violation->set_description(std::string(message));
  out.add_details()->PackFrom(bad);
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  base::ErrorDetail detail;
  if (auto found = base::GetErrorDetail(status)) {
    detail = *std::move(found);
  } else {
    detail.reason = std::string(CodeName(status.code()));
  }
  google::rpc::Status out;
  out.set_code(static_cast<int>(status.code()));
  out.set_message(std::string(status.message()));
  google::rpc::ErrorInfo info;
  info.set_reason(detail.reason);
  info.set_domain(std::string(kErrorDomain));
  for (const auto& [key, value] : detail.metadata) (*info.mutable_metadata())[key] = value;
  out.add_details()->PackFrom(info);
  if (!detail.field.empty()) AddBadRequest(detail.field, status.message(), out);
  if (status.code() == absl::StatusCode::kResourceExhausted ||
      status.code() == absl::StatusCode::kUnavailable) {
    AddRetryInfo(RetryMs(detail), out);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), out.message(), out.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  absl::Status plain(code, status.error_message());
  google::rpc::Status details;
  if (status.error_details().empty() || !details.ParseFromString(status.error_details())) return plain;
  google::rpc::ErrorInfo info;
  std::string field;
  for (const auto& any : details.details()) {
    google::rpc::ErrorInfo candidate;
    google::rpc::BadRequest bad;
    if (any.UnpackTo(&candidate)) info = candidate;
    if (any.UnpackTo(&bad) && bad.field_violations_size() > 0) field = bad.field_violations(0).field();
  }
  if (info.domain() != kErrorDomain) return plain;
  if (!field.empty() && code == absl::StatusCode::kInvalidArgument) {
    const std::string whole = status.error_message();  // by value: a view of the call's result would dangle
    absl::string_view message = whole;
    absl::ConsumePrefix(&message, field + ": ");
    return base::FieldError(field, info.reason(), message);
  }
  std::vector<std::pair<std::string, std::string>> metadata(info.metadata().begin(), info.metadata().end());
  std::sort(metadata.begin(), metadata.end());
  return base::Error(code, info.reason(), status.error_message(), std::move(metadata));
}

absl::string_view CodeName(absl::StatusCode code) {
  static constexpr absl::string_view kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

}  // namespace ridgefill::common
