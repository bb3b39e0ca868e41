// Moving and measuring rows: the exact set is gathered out of a chunk, its norms decide which rows are
// outliers.
#pragma once

#include "absl/status/status.h"
#include "kernels/api/tensor.h"

namespace ridgefill::kernels {

// out[i] = x[index[i]].
struct GatherRowsArgs {
  TensorView x;      // [n, d]
  TensorView index;  // i32 [rows], each in [0, n)
  TensorView out;    // [rows, d], the dtype of x
};
absl::Status Check(const GatherRowsArgs& args);

// out[r] = ||x[r]||_2, accumulated over ascending columns in an order that depends on d alone.
struct RowNormArgs {
  TensorView x;    // residual dtype (f32) [rows, d]
  TensorView out;  // f32 [rows]
};
absl::Status Check(const RowNormArgs& args);

}  // namespace ridgefill::kernels
