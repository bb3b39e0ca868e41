#include "engine/formats/tensor.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/check.h"
#include "engine/base/status.h"

namespace ridgefill::formats {
namespace {

struct EncodingTraits {
  Encoding encoding;
  absl::string_view name;
  int64_t block_elements;
  int64_t block_bytes;
};

// In the order of the enum.
constexpr EncodingTraits kTraits[] = {
    {Encoding::kF32, "F32", 1, 4},       {Encoding::kF16, "F16", 1, 2},
    {Encoding::kBF16, "BF16", 1, 2},     {Encoding::kQ4_0, "Q4_0", 32, 18},
    {Encoding::kQ4_1, "Q4_1", 32, 20},   {Encoding::kQ8_0, "Q8_0", 32, 34},
    {Encoding::kQ4_K, "Q4_K", 256, 144}, {Encoding::kQ6_K, "Q6_K", 256, 210},
    {Encoding::kF64, "F64", 1, 8},       {Encoding::kBool, "BOOL", 1, 1},
    {Encoding::kI8, "I8", 1, 1},         {Encoding::kU8, "U8", 1, 1},
    {Encoding::kI16, "I16", 1, 2},       {Encoding::kU16, "U16", 1, 2},
    {Encoding::kI32, "I32", 1, 4},       {Encoding::kU32, "U32", 1, 4},
    {Encoding::kI64, "I64", 1, 8},       {Encoding::kU64, "U64", 1, 8},
};

const EncodingTraits& TraitsOf(Encoding encoding) {
  const EncodingTraits& traits = kTraits[static_cast<size_t>(encoding)];
  RF_CHECK(traits.encoding == encoding);
  return traits;
}

absl::Status Refuse(absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kInvalidArgument, reason, message);
}

}  // namespace

absl::string_view EncodingName(Encoding encoding) { return TraitsOf(encoding).name; }
int64_t BlockElements(Encoding encoding) { return TraitsOf(encoding).block_elements; }
int64_t BlockBytes(Encoding encoding) { return TraitsOf(encoding).block_bytes; }

absl::StatusOr<uint64_t> ByteSize(Encoding encoding, absl::Span<const int64_t> dims) {
  if (dims.size() > kMaxDims) {
    return Refuse("TENSOR_DIMENSIONS",
                  absl::StrCat("has ", dims.size(), " dimensions, at most 4 are allowed"));
  }
  const EncodingTraits& traits = TraitsOf(encoding);
  int64_t elements = 1;
  bool wraps = false;
  for (const int64_t dim : dims) {
    if (dim < 0) {
      return Refuse("TENSOR_DIMENSIONS", absl::StrCat("has a dimension that is negative or beyond 63 bits: [",
                                                      absl::StrJoin(dims, ", "), "]"));
    }
    wraps |= __builtin_mul_overflow(elements, dim, &elements);
  }
  int64_t bytes = 0;
  wraps |= __builtin_mul_overflow(elements / traits.block_elements, traits.block_bytes, &bytes);
  if (wraps) {
    return Refuse("TENSOR_SIZE_OVERFLOW",
                  absl::StrCat("the size of [", absl::StrJoin(dims, ", "), "] is beyond 63 bits"));
  }
  const int64_t row = dims.empty() ? 1 : dims.back();
  if (row % traits.block_elements != 0) {
    return Refuse("TENSOR_BLOCK", absl::StrCat("rows of ", row, " elements are no whole number of ",
                                               traits.name, " blocks of ", traits.block_elements));
  }
  return static_cast<uint64_t>(bytes);
}

int64_t ElementCount(const TensorInfo& info) {
  int64_t count = 1;
  for (const int64_t dim : info.dims) count *= dim;
  return count;
}

}  // namespace ridgefill::formats
