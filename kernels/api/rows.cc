#include "kernels/api/rows.h"

#include "kernels/api/check_args.h"

namespace ridgefill::kernels {

absl::Status Check(const GatherRowsArgs& a) {
  const int64_t rows = a.index.dim(0), d = a.x.dim(1);
  RF_RETURN_IF_ERROR(CheckTensor("gather_rows", "index", a.index, DType::kI32, {rows}));
  return CheckTensor("gather_rows", "out", a.out, a.x.dtype, {rows, d});
}

absl::Status Check(const RowNormArgs& a) {
  const int64_t rows = a.x.dim(0), d = a.x.dim(1);
  RF_RETURN_IF_ERROR(CheckTensor("row_norm", "x", a.x, DType::kF32, {rows, d}));
  return CheckTensor("row_norm", "out", a.out, DType::kF32, {rows});
}

}  // namespace ridgefill::kernels
