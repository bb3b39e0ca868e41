// Stands in for kernels/cuda when the build has no CUDA.
#include "engine/base/status.h"
#include "kernels/api/backend.h"

namespace ridgefill::kernels {

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const CudaOptions&) {
  return base::Error(absl::StatusCode::kUnimplemented, "NO_CUDA",
                     "this build has no CUDA backend; allowed backends: cpu, reference");
}

}  // namespace ridgefill::kernels
