// GGUF version 3, little endian, as a checked view of untrusted bytes.
//
// Open() maps the file and Parse() borrows bytes; both read the whole header and check it, so that every
// later access is in bounds: counts and strings fit the file, keys and tensor names are unique, dimensions
// multiply without wrapping, tensors are aligned, inside the file and apart. Memory taken is a small multiple
// of the header's real size, whatever its counts claim. Values and tensors are views into the map and live as
// long as the GgufFile (also across a move). Thread-safe after construction (const access only).
//
// Errors: INVALID_ARGUMENT with reason GGUF_MAGIC, GGUF_VERSION, GGUF_ENDIAN, GGUF_TRUNCATED, GGUF_COUNT,
// GGUF_STRING_LENGTH, GGUF_NAME_LENGTH, GGUF_DUPLICATE_KEY, GGUF_VALUE_TYPE, GGUF_NESTED_ARRAY, GGUF_BOOL,
// GGUF_ALIGNMENT, GGUF_TENSOR_TYPE, GGUF_DUPLICATE_TENSOR, GGUF_OFFSET_ALIGNMENT, GGUF_OFFSET_RANGE,
// GGUF_OVERLAP, and tensor.h's; a getter adds GGUF_KEY_TYPE, GGUF_KEY_RANGE, and NOT_FOUND with
// GGUF_MISSING_KEY or MISSING_TENSOR.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/file.h"
#include "engine/formats/tensor.h"

namespace ridgefill::formats {

// Numbers as in the file.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// One metadata value; `payload` starts at the value itself (for an array: at its first element).
struct GgufValue {
  GgufType type = GgufType::kU8;  // of the value, or of an array's elements
  bool is_array = false;
  uint64_t count = 1;  // elements
  absl::string_view payload;
};

class GgufFile {
 public:
  static absl::StatusOr<GgufFile> Open(const std::string& path);
  static absl::StatusOr<GgufFile> Parse(absl::string_view bytes);

  bool Has(absl::string_view key) const { return values_.contains(key); }
  // Keys in file order.
  const std::vector<absl::string_view>& keys() const { return keys_; }

  absl::StatusOr<absl::string_view> GetString(absl::string_view key) const;
  absl::StatusOr<int64_t> GetInt(absl::string_view key) const;    // any integer type
  absl::StatusOr<double> GetDouble(absl::string_view key) const;  // F32 or F64
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  absl::StatusOr<std::vector<absl::string_view>> GetStrings(absl::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetInts(absl::string_view key) const;
  absl::StatusOr<std::vector<double>> GetDoubles(absl::string_view key) const;

  // The same with a fallback for a missing key; a value of another type is still an error.
  absl::StatusOr<absl::string_view> GetStringOr(absl::string_view key, absl::string_view fallback) const;
  absl::StatusOr<int64_t> GetIntOr(absl::string_view key, int64_t fallback) const;
  absl::StatusOr<double> GetDoubleOr(absl::string_view key, double fallback) const;
  absl::StatusOr<bool> GetBoolOr(absl::string_view key, bool fallback) const;

  // In file order, dimensions row-major (the file has them innermost first).
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  bool HasTensor(absl::string_view name) const { return tensor_index_.contains(name); }
  absl::StatusOr<TensorBytes> Tensor(absl::string_view name) const;

 private:
  friend class GgufParser;
  GgufFile() = default;
  absl::StatusOr<GgufValue> Value(absl::string_view key, bool is_array) const;

  std::optional<base::MappedFile> map_;  // empty after Parse()
  absl::string_view bytes_;
  std::vector<absl::string_view> keys_;
  absl::flat_hash_map<absl::string_view, GgufValue> values_;
  std::vector<TensorInfo> tensors_;
  absl::flat_hash_map<absl::string_view, size_t> tensor_index_;
};

}  // namespace ridgefill::formats
