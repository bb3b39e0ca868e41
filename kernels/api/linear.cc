#include "kernels/api/linear.h"

#include "kernels/api/check_args.h"

namespace ridgefill::kernels {

absl::Status Check(const LinearSource& s) {
  if (s.out_features <= 0 || s.in_features <= 0 || !s.read_rows) {
    return BadArgs(absl::StrCat("pack_linear: [", s.out_features, ", ", s.in_features, "] or no reader"));
  }
  if (!s.bias.empty() && static_cast<int64_t>(s.bias.size()) != s.out_features) {
    return BadArgs(absl::StrCat("pack_linear: ", s.bias.size(), " biases of ", s.out_features));
  }
  return absl::OkStatus();
}

absl::Status Check(const LinearArgs& a) {
  if (a.weight == nullptr) return BadArgs("linear: no weight");
  if (!a.weight->has(a.phase)) return BadArgs("linear: the weight was not packed for this phase");
  const int64_t rows = a.x.dim(0);
  RF_RETURN_IF_ERROR(CheckShape("linear", "x", a.x, {rows, a.weight->in_features()}));
  RF_RETURN_IF_ERROR(CheckShape("linear", "y", a.y, {rows, a.weight->out_features()}));
  if (a.accumulate && a.y.dtype != DType::kF32) return BadArgs("linear: accumulate needs an f32 y");
  return absl::OkStatus();
}

absl::Status Check(const GramArgs& a) {
  const int64_t rows = a.x.dim(0);
  RF_RETURN_IF_ERROR(CheckTensor("gram", "x", a.x, DType::kF32, {rows, a.x.dim(1)}));
  RF_RETURN_IF_ERROR(CheckTensor("gram", "y", a.y, DType::kF32, {rows, a.y.dim(1)}));
  return CheckTensor("gram", "c", a.c, DType::kF32, {a.x.dim(1), a.y.dim(1)});
}

}  // namespace ridgefill::kernels
