// Structured logs: one JSON object a line on stderr. Never log prompt or answer text.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"

namespace ridgefill::base {

enum class Severity { kInfo, kWarning, kError };

struct LogField {
  absl::string_view key;
  std::variant<int64_t, double, bool, std::string> value;
};

// Writes {"ts": RFC 3339, "severity": .., "event": event, fields...} in one write call. Thread-safe.
// Event names are lower_snake_case and stable: operators filter by them.
void Log(Severity severity, absl::string_view event, std::initializer_list<LogField> fields);

}  // namespace ridgefill::base
