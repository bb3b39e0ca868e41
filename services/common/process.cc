#include "services/common/process.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "engine/base/check.h"

namespace ridgefill::common {

void TuneMalloc() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 0x7fffffff);
  mallopt(M_TOP_PAD, 64 << 20);
}

ShutdownSignal::ShutdownSignal() {
  static int wake = -1;  // a handler reaches nothing else
  RF_CHECK(pipe2(ends_, O_CLOEXEC) == 0);
  wake = ends_[1];
  struct sigaction action = {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = [](int number) {
    const int before = errno;
    const char byte = static_cast<char>(number);
    [[maybe_unused]] const ssize_t written = write(wake, &byte, 1);
    errno = before;
  };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

ShutdownSignal::~ShutdownSignal() {
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  close(ends_[0]);
  close(ends_[1]);
}

int ShutdownSignal::Wait() {
  char number = 0;
  while (read(ends_[0], &number, 1) != 1) {
  }
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  return number;
}

int ExitCode(absl::string_view program, const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", std::string(program).c_str(), std::string(status.message()).c_str());
  return 1;
}

}  // namespace ridgefill::common
