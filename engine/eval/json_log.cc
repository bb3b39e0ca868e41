#include "engine/eval/json_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/file.h"
#include "engine/base/status.h"

namespace ridgefill::eval {
namespace {

absl::Status FileError(absl::string_view path, absl::string_view what) {
  return base::Error(absl::StatusCode::kInvalidArgument, "EVAL_FILE",
                     absl::StrCat(path, ": cannot ", what, ": ", std::strerror(errno)));
}

bool HasKey(const Record& line) {
  return line.is_object() && line.contains("key") && line["key"].is_string();
}

// A line without its end that a killed process of ours may have left. As the only line of a file it must
// really have been cut: a whole object there is someone else's.
bool IsCutShort(const std::string& line, bool only) {
  constexpr absl::string_view kBegin = "{\"key\":\"";
  const size_t common = std::min(line.size(), kBegin.size());
  if (absl::string_view(line).substr(0, common) != kBegin.substr(0, common)) return false;
  return !only || !Record::accept(line);
}

}  // namespace

absl::StatusOr<std::unique_ptr<JsonLog>> JsonLog::Open(const std::string& path) {
  if (path.empty()) return std::unique_ptr<JsonLog>(new JsonLog(path, -1));
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return FileError(path, "open");
  std::unique_ptr<JsonLog> log(new JsonLog(path, file));
  if (flock(file, LOCK_EX | LOCK_NB) != 0) {
    return base::Error(absl::StatusCode::kFailedPrecondition, "EVAL_FILE_IN_USE",
                       absl::StrCat(path, " is written by another process"));
  }
  RF_RETURN_IF_ERROR(log->Read());
  return log;
}

JsonLog::~JsonLog() {
  if (file_ >= 0) close(file_);
}

absl::Status JsonLog::Read() {
  RF_ASSIGN_OR_RETURN(const std::string bytes, base::ReadFile(path_));
  size_t begin = 0;
  int number = 1;
  const auto damaged = [&] {
    return base::Error(absl::StatusCode::kDataLoss, "EVAL_FILE_DAMAGED",
                       absl::StrCat(path_, ": line ", number, " is not a JSON object with a key"));
  };
  for (;; ++number) {
    const size_t end = bytes.find('\n', begin);
    if (end == std::string::npos) break;
    Record line = Record::parse(bytes.begin() + static_cast<ptrdiff_t>(begin),
                                bytes.begin() + static_cast<ptrdiff_t>(end), nullptr,
                                /*allow_exceptions=*/false);
    if (!HasKey(line)) return damaged();
    std::string key = line["key"].get<std::string>();
    lines_[std::move(key)] = std::move(line);
    begin = end + 1;
  }
  if (begin < bytes.size() && !IsCutShort(bytes.substr(begin), number == 1)) return damaged();
  if (begin < bytes.size() && ftruncate(file_, static_cast<off_t>(begin)) != 0) {
    return FileError(path_, "drop a line that was cut short");
  }
  return absl::OkStatus();
}

const Record* JsonLog::Find(const std::string& key) const {
  const auto it = lines_.find(key);
  return it == lines_.end() ? nullptr : &it->second;
}

absl::Status JsonLog::Append(const std::string& key, const Record& line) {
  Record out = Record::object();
  out["key"] = key;
  out.update(line);
  if (file_ >= 0) {
    const std::string bytes = out.dump(-1, ' ', false, Record::error_handler_t::replace) + "\n";
    size_t written = 0;
    while (written < bytes.size()) {
      const ssize_t count = write(file_, bytes.data() + written, bytes.size() - written);
      if (count < 0 && errno != EINTR) return FileError(path_, "write");
      if (count > 0) written += static_cast<size_t>(count);
    }
  }
  lines_[key] = std::move(out);
  return absl::OkStatus();
}

}  // namespace ridgefill::eval
