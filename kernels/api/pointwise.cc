#include "kernels/api/pointwise.h"

#include "kernels/api/check_args.h"

namespace ridgefill::kernels {

absl::Status Check(const EmbeddingArgs& a) {
  const int64_t rows = a.ids.dim(0), d = a.table.dim(1);
  RF_RETURN_IF_ERROR(CheckShape("embedding", "table", a.table, {a.table.dim(0), d}));
  RF_RETURN_IF_ERROR(CheckTensor("embedding", "ids", a.ids, DType::kI32, {rows}));
  return CheckTensor("embedding", "out", a.out, DType::kF32, {rows, d});
}

absl::Status Check(const RmsNormArgs& a) {
  const int64_t rows = a.x.dim(0), d = a.x.dim(1);
  RF_RETURN_IF_ERROR(CheckTensor("rms_norm", "x", a.x, DType::kF32, {rows, d}));
  RF_RETURN_IF_ERROR(CheckTensor("rms_norm", "weight", a.weight, DType::kF32, {d}));
  return CheckShape("rms_norm", "out", a.out, {rows, d});
}

absl::Status Check(const SwiGluArgs& a) {
  const int64_t rows = a.out.dim(0), ffn = a.out.dim(1);
  RF_RETURN_IF_ERROR(CheckShape("swiglu", "out", a.out, {rows, ffn}));
  RF_RETURN_IF_ERROR(CheckShape("swiglu", "gate_up", a.gate_up, {rows, 2 * ffn}));
  return a.gate_up.dtype == a.out.dtype ? absl::OkStatus() : BadArgs("swiglu: dtypes differ");
}

absl::Status Check(const CastArgs& a) { return CheckShape("cast", "out", a.out, {a.x.dim(0), a.x.dim(1)}); }

}  // namespace ridgefill::kernels
