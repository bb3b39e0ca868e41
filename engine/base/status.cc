#include "engine/base/status.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ridgefill::base {
namespace {

constexpr absl::string_view kDetailUrl = "ridgefill/error-detail";

// Payload form: reason, field, key, value, key, value ... separated by the unit separator, which no part
// contains.
constexpr char kSeparator = '\x1f';

void Append(std::string& out, absl::string_view part) {
  for (char c : part) out.push_back(c == kSeparator ? ' ' : c);
  out.push_back(kSeparator);
}

absl::Status Make(absl::StatusCode code, absl::string_view message, const ErrorDetail& detail) {
  absl::Status status(code, message);
  std::string payload;
  Append(payload, detail.reason);
  Append(payload, detail.field);
  for (const auto& [key, value] : detail.metadata) {
    Append(payload, key);
    Append(payload, value);
  }
  status.SetPayload(kDetailUrl, absl::Cord(payload));
  return status;
}

}  // namespace

absl::Status Error(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                   std::vector<std::pair<std::string, std::string>> metadata) {
  return Make(code, message, {std::string(reason), std::move(metadata), ""});
}

absl::Status FieldError(absl::string_view field, absl::string_view reason, absl::string_view message) {
  return Make(absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", message),
              {std::string(reason), {{"field", std::string(field)}}, std::string(field)});
}

std::optional<ErrorDetail> GetErrorDetail(const absl::Status& status) {
  const auto payload = status.GetPayload(kDetailUrl);
  if (!payload.has_value()) return std::nullopt;
  const std::vector<std::string> parts = absl::StrSplit(std::string(*payload), kSeparator);
  ErrorDetail detail;
  if (parts.size() < 2) return std::nullopt;
  detail.reason = parts[0];
  detail.field = parts[1];
  for (size_t i = 2; i + 1 < parts.size(); i += 2) detail.metadata.emplace_back(parts[i], parts[i + 1]);
  return detail;
}

absl::Status WithContext(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status out(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
  return out;
}

}  // namespace ridgefill::base
