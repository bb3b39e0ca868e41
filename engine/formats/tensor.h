// Tensors as a file stores them, and their values as floats.
//
// TensorBytes borrows from the file's memory map: it must not outlive the GgufFile, SafetensorsFile or
// SafetensorsSet that gave it. Everything here is thread-safe (pure functions over borrowed bytes). Errors:
// INVALID_ARGUMENT with reason TENSOR_DIMENSIONS, TENSOR_SIZE_OVERFLOW, TENSOR_BLOCK, TENSOR_ENCODING or
// TENSOR_RANGE; the callers in this folder put the tensor's name before the message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ridgefill::formats {

// How elements lie in the file. The Q types are ggml's: blocks of 32 (Q4_0, Q4_1, Q8_0) or 256 (Q4_K, Q6_K)
// elements.
enum class Encoding {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ8_0,
  kQ4_K,
  kQ6_K,
  kF64,
  kBool,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
};

// "Q4_K", "BF16", ...: the name that both formats use.
absl::string_view EncodingName(Encoding encoding);
// Elements and bytes of one block; 1 element for plain types.
int64_t BlockElements(Encoding encoding);
int64_t BlockBytes(Encoding encoding);

inline constexpr size_t kMaxDims = 4;

struct TensorInfo {
  std::string name;
  Encoding encoding = Encoding::kF32;
  std::vector<int64_t> dims;  // row-major, outermost first: [rows, cols]
  uint64_t offset = 0;        // of the first byte, from the start of the file
  uint64_t byte_size = 0;
};

struct TensorBytes {
  TensorInfo info;
  absl::string_view bytes;  // [info.byte_size], borrowed; no alignment promised
};

// The bytes that `dims` elements take. Refuses more than kMaxDims dimensions, negative ones, products beyond
// int64 and rows (the last dimension) that are no whole number of blocks.
absl::StatusOr<uint64_t> ByteSize(Encoding encoding, absl::Span<const int64_t> dims);

int64_t ElementCount(const TensorInfo& info);

// Elements [begin, begin + out.size()) of `bytes` as floats; both ends on block borders. Bit-equal to the
// `gguf` Python package for ggml types. Integers and F64 are refused: they are never weights.
absl::Status Dequantize(Encoding encoding, absl::string_view bytes, int64_t begin, absl::Span<float> out);

}  // namespace ridgefill::formats
