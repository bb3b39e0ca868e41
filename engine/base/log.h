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

// Lines less severe than this are left out, in the whole process (default: none are). For the main() of a
// program that people sit in front of.
void SetLogThreshold(Severity least);

}  // namespace ridgefill::base
