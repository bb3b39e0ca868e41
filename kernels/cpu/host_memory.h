// Memory of the CPU backend: 64-byte aligned, on huge pages where large, counted, and refused with the
// arithmetic instead of std::bad_alloc or the kernel's OOM killer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridgefill::kernels::cpu {

// Thread-safe. Must outlive its buffers.
class HostMemory {
 public:
  using Buffer = std::unique_ptr<char, std::function<void(char*)>>;

  // Large buffers are zero, small ones undefined. `what` names the buffer in the error.
  absl::StatusOr<Buffer> Allocate(int64_t bytes, absl::string_view what);
  int64_t bytes_held() const { return held_.load(); }

 private:
  std::atomic<int64_t> held_{0};
};

}  // namespace ridgefill::kernels::cpu
