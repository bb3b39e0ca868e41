#include "engine/base/log.h"

#include <unistd.h>

#include <atomic>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ridgefill::base {
namespace {

void AppendString(std::string& out, absl::string_view text) {
  out.push_back('"');
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      out.push_back(static_cast<char>(c));
    }
  }
  out.push_back('"');
}

struct AppendValue {
  std::string& out;
  void operator()(int64_t value) const { absl::StrAppend(&out, value); }
  void operator()(double value) const {
    if (std::isfinite(value)) {
      absl::StrAppendFormat(&out, "%.6g", value);
    } else {
      out += "null";
    }
  }
  void operator()(bool value) const { out += value ? "true" : "false"; }
  void operator()(const std::string& value) const { AppendString(out, value); }
};

// One per process, as stderr is. NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<Severity> threshold = Severity::kInfo;

}  // namespace

void SetLogThreshold(Severity least) { threshold = least; }

void Log(Severity severity, absl::string_view event, std::initializer_list<LogField> fields) {
  if (severity < threshold) return;
  static constexpr const char* kNames[] = {"INFO", "WARNING", "ERROR"};
  std::string line =
      absl::StrCat("{\"ts\":\"", absl::FormatTime(absl::RFC3339_full, absl::Now(), absl::UTCTimeZone()),
                   "\",\"severity\":\"", kNames[static_cast<int>(severity)], "\",\"event\":");
  AppendString(line, event);
  for (const LogField& field : fields) {
    line.push_back(',');
    AppendString(line, field.key);
    line.push_back(':');
    std::visit(AppendValue{line}, field.value);
  }
  line += "}\n";
  // One write keeps lines whole when several threads or programs share a terminal. Nothing can be done if it
  // fails.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace ridgefill::base
