// Which instruction sets this machine has and which kernels serve them.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cpu/kernel_table.h"

namespace ridgefill::kernels::cpu {

// The kernels of `isa`, or the machine's best when empty. INVALID_ARGUMENT names what is known or missing.
absl::StatusOr<const KernelTable*> KernelsFor(absl::string_view isa);

}  // namespace ridgefill::kernels::cpu
