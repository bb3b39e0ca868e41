// Errors of the project: absl::Status with a machine-readable reason attached.
//
// Every error that can reach a client is made by Error() or FieldError(), so that the services can put a
// google.rpc.ErrorInfo (and BadRequest) beside the canonical code without guessing from the text.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridgefill::base {

// What a service reports beside code and message. `reason` is UPPER_SNAKE_CASE and stable.
struct ErrorDetail {
  std::string reason;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::string field;  // path of the offending request field, empty when the error is not about one
};

absl::Status Error(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                   std::vector<std::pair<std::string, std::string>> metadata = {});

// INVALID_ARGUMENT about one request field, e.g. FieldError("sampling.top_p", "TOP_P_RANGE", "... must be in
// (0, 1], got 3").
absl::Status FieldError(absl::string_view field, absl::string_view reason, absl::string_view message);

// The detail attached by the two functions above; nullopt for a plain absl::Status.
std::optional<ErrorDetail> GetErrorDetail(const absl::Status& status);

// The same status with `context: ` put before its message; code and detail are kept.
absl::Status WithContext(const absl::Status& status, absl::string_view context);

}  // namespace ridgefill::base

#define RF_CONCAT_INNER_(a, b) a##b
#define RF_CONCAT_(a, b) RF_CONCAT_INNER_(a, b)

// Returns from the enclosing function when `expression` is not OK.
#define RF_RETURN_IF_ERROR(expression)                                               \
  do {                                                                               \
    if (absl::Status rf_status_ = (expression); !rf_status_.ok()) return rf_status_; \
  } while (0)

// RF_ASSIGN_OR_RETURN(auto x, MakeX()): assigns the value or returns the error.
#define RF_ASSIGN_OR_RETURN(lhs, expression) \
  RF_ASSIGN_OR_RETURN_IMPL_(RF_CONCAT_(rf_or_, __LINE__), lhs, expression)
#define RF_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expression) \
  auto statusor = (expression);                              \
  if (!statusor.ok()) return std::move(statusor).status();   \
  lhs = *std::move(statusor)
