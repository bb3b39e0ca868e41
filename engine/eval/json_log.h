// A file of JSON lines that grows as results come, each under a key: a run that was killed finds there what
// it had done. A last line that was cut short is dropped when it begins as one of ours.
//
// Not thread-safe; one process at a time has a file open (FAILED_PRECONDITION, EVAL_FILE_IN_USE). Any other
// line that is no JSON object with a key is DATA_LOSS (EVAL_FILE_DAMAGED) with its number: nothing is thrown
// away that someone may have meant, and no other file is taken for ours.
#pragma once

#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace ridgefill::eval {

// A line of a report: fields in the order in which they were put in.
using Record = nlohmann::ordered_json;

class JsonLog {
 public:
  // An empty path keeps lines in memory alone.
  static absl::StatusOr<std::unique_ptr<JsonLog>> Open(const std::string& path);
  JsonLog(const JsonLog&) = delete;
  JsonLog& operator=(const JsonLog&) = delete;
  ~JsonLog();

  // Null when there is no line of this key. Valid until the next Append.
  const Record* Find(const std::string& key) const;
  // `line` is an object; {"key": key} goes before its fields. A key that is there already is replaced: the
  // last line of a key counts.
  absl::Status Append(const std::string& key, const Record& line);

 private:
  JsonLog(std::string path, int file) : path_(std::move(path)), file_(file) {}
  absl::Status Read();

  const std::string path_;
  const int file_;  // -1: none
  absl::flat_hash_map<std::string, Record> lines_;
};

}  // namespace ridgefill::eval
