// What `ridgefill eval` prints beside its JSON lines: progress, and a table for people. Internal to
// services/cli.
#pragma once

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/eval/measure.h"

namespace ridgefill::cli {

// On standard error: redrawn on a terminal, elsewhere now and then.
class EvalProgress {
 public:
  EvalProgress();
  absl::Status operator()(const eval::Progress& progress);

 private:
  const bool terminal_;
  absl::Time last_ = absl::Now(), began_ = absl::Now();
  std::string measure_;
  int64_t computed_ = 0;  // of the measure's items, those that were not there already
};

// One row for a record, on standard error; a head when the measure changes.
class EvalTable {
 public:
  void Add(const eval::Record& record);

 private:
  std::string measure_;
};

}  // namespace ridgefill::cli
