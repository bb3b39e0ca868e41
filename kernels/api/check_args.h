// Shared argument checks, so that a wrong shape reads the same on every backend. INTERNAL: only our own bugs
// get here.
#pragma once

#include <initializer_list>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"
#include "kernels/api/tensor.h"

namespace ridgefill::kernels {

inline absl::Status BadArgs(absl::string_view message) { return absl::InternalError(message); }

inline absl::Status CheckShape(absl::string_view op, absl::string_view name, const TensorView& t,
                               std::initializer_list<int64_t> shape) {
  if (t.HasShape(shape)) return absl::OkStatus();
  return BadArgs(
      absl::StrCat(op, ": ", name, " is ", t.DebugString(), ", expected [", absl::StrJoin(shape, ", "), "]"));
}

inline absl::Status CheckTensor(absl::string_view op, absl::string_view name, const TensorView& t,
                                DType dtype, std::initializer_list<int64_t> shape) {
  RF_RETURN_IF_ERROR(CheckShape(op, name, t, shape));
  if (t.dtype == dtype) return absl::OkStatus();
  return BadArgs(absl::StrCat(op, ": ", name, " is ", t.DebugString(), ", expected ", Name(dtype)));
}

}  // namespace ridgefill::kernels
