#include "kernels/api/tensor.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "engine/base/check.h"

namespace ridgefill::kernels {

int64_t ByteSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kI8:
      return 1;
  }
  RF_CHECK(false);
}

absl::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kI32:
      return "i32";
    case DType::kI8:
      return "i8";
  }
  RF_CHECK(false);
}

int64_t TensorView::elements() const {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= dims[i];
  return n;
}

int64_t TensorView::row_elements() const {
  int64_t n = 1;
  for (int i = 1; i < rank; ++i) n *= dims[i];
  return n;
}

TensorView TensorView::Rows(int64_t begin, int64_t count) const {
  RF_CHECK(rank >= 1 && begin >= 0 && count >= 0 && begin + count <= dims[0]);
  TensorView out = *this;
  out.data = static_cast<char*>(data) + begin * row_elements() * ByteSize(dtype);
  out.dims[0] = count;
  return out;
}

TensorView TensorView::Reshape(std::initializer_list<int64_t> shape) const {
  RF_CHECK(shape.size() <= kMaxRank);
  TensorView out{data, dtype, static_cast<int>(shape.size()), {}};
  int i = 0;
  for (int64_t d : shape) out.dims[i++] = d;
  RF_CHECK(out.elements() == elements());
  return out;
}

bool TensorView::HasShape(std::initializer_list<int64_t> shape) const {
  if (static_cast<int>(shape.size()) != rank) return false;
  int i = 0;
  for (int64_t d : shape) {
    if (dims[i++] != d) return false;
  }
  return true;
}

std::string TensorView::DebugString() const {
  return absl::StrCat(absl::StrCat(Name(dtype)), "[", absl::StrJoin(absl::MakeSpan(dims.data(), rank), ", "),
                      "]");
}

}  // namespace ridgefill::kernels
