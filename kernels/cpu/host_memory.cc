#include "kernels/cpu/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace ridgefill::kernels::cpu {
namespace {

constexpr int64_t kLarge = int64_t{1} << 20;
constexpr int64_t kHugePage = int64_t{2} << 20;

// What the machine can still give, from MemAvailable; all of its memory when that cannot be read.
int64_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word) {
    int64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

absl::Status Refused(int64_t bytes, absl::string_view what, int64_t held, int64_t available) {
  return base::Error(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY",
                     absl::StrCat("cpu backend: ", what, " needs ", bytes, " bytes on top of ", held,
                                  " held, but the machine has ", available, " bytes available"));
}

char* Map(int64_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  madvise(p, bytes, MADV_HUGEPAGE);
  return static_cast<char*>(p);
}

}  // namespace

absl::StatusOr<HostMemory::Buffer> HostMemory::Allocate(int64_t bytes, absl::string_view what) {
  const int64_t held = held_.load();
  const bool large = bytes >= kLarge;
  const int64_t unit = large ? kHugePage : 64;
  const int64_t rounded = std::max((bytes + unit - 1) / unit * unit, unit);
  char* p = nullptr;
  if (large) {
    const int64_t available = AvailableBytes();
    if (bytes < available) p = Map(rounded);
    if (p == nullptr) return Refused(bytes, what, held, available);
  } else {
    p = static_cast<char*>(std::aligned_alloc(64, rounded));
    if (p == nullptr) return Refused(bytes, what, held, AvailableBytes());
  }
  held_.fetch_add(rounded);
  return Buffer(p, [this, rounded, large](char* gone) {
    held_.fetch_sub(rounded);
    if (large) {
      munmap(gone, rounded);
    } else {
      std::free(gone);
    }
  });
}

}  // namespace ridgefill::kernels::cpu
