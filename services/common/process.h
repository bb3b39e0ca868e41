// What a long-running program sets up for itself.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ridgefill::common {

// KV frames are messages of 1 MiB: glibc would map and unmap each, and its pages fault again every time,
// which cuts a transfer to a quarter of its speed. Keeps freed memory instead. Call first in main().
void TuneMalloc();

// Catches SIGTERM and SIGINT while it lives: one at a time in a process. Before and after, either ends the
// process at once, as is right while it serves nothing yet.
class ShutdownSignal {
 public:
  ShutdownSignal();
  ~ShutdownSignal();
  ShutdownSignal(const ShutdownSignal&) = delete;
  ShutdownSignal& operator=(const ShutdownSignal&) = delete;
  // Returns the signal's number. Afterwards a second one kills the process at once.
  int Wait();

 private:
  int ends_[2];  // of a pipe that the handler writes to
};

// What main() returns for the outcome of its work: 0, or 1 after saying on stderr what went wrong.
int ExitCode(absl::string_view program, const absl::Status& status);

}  // namespace ridgefill::common
