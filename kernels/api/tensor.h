// Shapes and memory of tensors. A TensorView borrows, a Tensor owns; both are dense and row-major.
//
// `data` is an address of the backend that made the tensor. Only code under kernels/<backend>/ may
// dereference it: on CUDA it is device memory. Everybody else moves bytes through Backend::CopyFromHost and
// CopyToHost.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace ridgefill::kernels {

enum class DType : uint8_t { kF32, kBF16, kI32, kI8 };

int64_t ByteSize(DType dtype);
absl::string_view Name(DType dtype);

inline constexpr int kMaxRank = 4;

// A dense row-major tensor that someone else owns. Copyable, cheap.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> dims{};

  int64_t dim(int i) const { return dims[i]; }
  int64_t elements() const;
  int64_t bytes() const { return elements() * ByteSize(dtype); }
  // Elements of one step along dim 0.
  int64_t row_elements() const;
  // Rows [begin, begin + count) of dim 0.
  TensorView Rows(int64_t begin, int64_t count) const;
  // The same elements under another shape; the element count must agree.
  TensorView Reshape(std::initializer_list<int64_t> shape) const;
  bool HasShape(std::initializer_list<int64_t> shape) const;
  std::string DebugString() const;  // "bf16[128, 576]"

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Owns memory of a backend; movable. The backend must outlive it.
class Tensor {
 public:
  using Deleter = std::function<void(void*)>;
  Tensor() = default;
  Tensor(TensorView view, Deleter deleter) : view_(view), memory_(view.data, std::move(deleter)) {}

  const TensorView& view() const { return view_; }
  explicit operator bool() const { return view_.data != nullptr; }

 private:
  TensorView view_;
  std::unique_ptr<void, Deleter> memory_{nullptr, [](void*) {}};
};

}  // namespace ridgefill::kernels
