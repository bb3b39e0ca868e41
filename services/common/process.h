// What a long-running program sets up for itself.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ridgefill::common {

// KV frames are messages of 1 MiB: glibc would map and unmap each, and its pages fault again every time,
// which cuts a transfer to a quarter of its speed. Keeps freed memory instead. Call first in main().
void TuneMalloc();

// Blocks SIGTERM and SIGINT for this thread and all that it starts; construct before any other thread exists.
class ShutdownSignal {
 public:
  ShutdownSignal();
  // Returns the signal's number. Afterwards a second one kills the process at once.
  int Wait();
};

// What main() returns for the outcome of its work: 0, or 1 after saying on stderr what went wrong.
int ExitCode(absl::string_view program, const absl::Status& status);

}  // namespace ridgefill::common
