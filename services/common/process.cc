#include "services/common/process.h"

#include <malloc.h>
#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <string>

namespace ridgefill::common {
namespace {

sigset_t ShutdownSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

void TuneMalloc() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 0x7fffffff);
  mallopt(M_TOP_PAD, 64 << 20);
}

ShutdownSignal::ShutdownSignal() {
  const sigset_t set = ShutdownSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

int ShutdownSignal::Wait() {
  const sigset_t set = ShutdownSignals();
  int number = 0;
  while (sigwait(&set, &number) != 0) {
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  return number;
}

int ExitCode(absl::string_view program, const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", std::string(program).c_str(), std::string(status.message()).c_str());
  return 1;
}

}  // namespace ridgefill::common
