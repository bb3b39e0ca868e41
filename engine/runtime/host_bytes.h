// Host vectors as the bytes that Backend copies.
#pragma once

#include "absl/types/span.h"

namespace ridgefill::runtime {

template <typename T>
absl::Span<const char> HostBytes(absl::Span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
absl::Span<char> HostBytes(absl::Span<T> values) {
  return {reinterpret_cast<char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace ridgefill::runtime
