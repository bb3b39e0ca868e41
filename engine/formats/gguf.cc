#include "engine/formats/gguf.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/formats/quote.h"

namespace ridgefill::formats {
namespace {

absl::Status WrongType(absl::string_view key, const GgufValue& value, absl::string_view wanted) {
  static constexpr absl::string_view kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                                 "int32",  "float32", "bool",   "string", "array",
                                                 "uint64", "int64",   "float64"};
  return base::Error(absl::StatusCode::kInvalidArgument, "GGUF_KEY_TYPE",
                     absl::StrCat("GGUF: key ", Quote(key), " is ", value.is_array ? "an array of " : "",
                                  kNames[static_cast<size_t>(value.type)], ", must be ", wanted));
}

template <typename T>
T LoadAt(const GgufValue& value, uint64_t index) {
  T loaded;
  std::memcpy(&loaded, value.payload.data() + index * sizeof(T), sizeof(T));
  return loaded;
}

absl::StatusOr<int64_t> IntAt(absl::string_view key, const GgufValue& value, uint64_t index) {
  switch (value.type) {
    case GgufType::kU8:
      return LoadAt<uint8_t>(value, index);
    case GgufType::kI8:
      return LoadAt<int8_t>(value, index);
    case GgufType::kU16:
      return LoadAt<uint16_t>(value, index);
    case GgufType::kI16:
      return LoadAt<int16_t>(value, index);
    case GgufType::kU32:
      return LoadAt<uint32_t>(value, index);
    case GgufType::kI32:
      return LoadAt<int32_t>(value, index);
    case GgufType::kI64:
      return LoadAt<int64_t>(value, index);
    case GgufType::kU64: {
      const uint64_t loaded = LoadAt<uint64_t>(value, index);
      if (loaded <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        return static_cast<int64_t>(loaded);
      return base::Error(
          absl::StatusCode::kInvalidArgument, "GGUF_KEY_RANGE",
          absl::StrCat("GGUF: key ", Quote(key), " is ", loaded, ", beyond 64-bit signed integers"));
    }
    default:
      return WrongType(key, value, "an integer");
  }
}

absl::StatusOr<double> DoubleAt(absl::string_view key, const GgufValue& value, uint64_t index) {
  if (value.type == GgufType::kF32) return LoadAt<float>(value, index);
  if (value.type == GgufType::kF64) return LoadAt<double>(value, index);
  return WrongType(key, value, "a float");
}

// Takes the next string off the front of `payload`; its length was checked by the parser.
absl::string_view TakeString(absl::string_view* payload) {
  uint64_t length = 0;
  std::memcpy(&length, payload->data(), sizeof(length));
  const absl::string_view text = payload->substr(sizeof(length), length);
  payload->remove_prefix(sizeof(length) + length);
  return text;
}

template <typename T>
absl::StatusOr<std::vector<T>> All(absl::string_view key, const GgufValue& value,
                                   absl::StatusOr<T> (*at)(absl::string_view, const GgufValue&, uint64_t)) {
  std::vector<T> all;
  for (uint64_t i = 0; i < value.count; ++i) {
    RF_ASSIGN_OR_RETURN(T one, at(key, value, i));
    if (i == 0) all.reserve(value.count);
    all.push_back(one);
  }
  return all;
}

}  // namespace

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  RF_ASSIGN_OR_RETURN(base::MappedFile map, base::MappedFile::Open(path));
  absl::StatusOr<GgufFile> file = Parse(map.bytes());
  if (!file.ok()) return base::WithContext(file.status(), path);
  file->map_ = std::move(map);
  return file;
}

absl::StatusOr<GgufValue> GgufFile::Value(absl::string_view key, bool is_array) const {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    return base::Error(absl::StatusCode::kNotFound, "GGUF_MISSING_KEY",
                       absl::StrCat("GGUF: key ", Quote(key), " is missing"));
  }
  if (found->second.is_array != is_array) {
    return WrongType(key, found->second, is_array ? "an array" : "a single value");
  }
  return found->second;
}

absl::StatusOr<absl::string_view> GgufFile::GetString(absl::string_view key) const {
  RF_ASSIGN_OR_RETURN(GgufValue value, Value(key, false));
  if (value.type != GgufType::kString) return WrongType(key, value, "a string");
  return TakeString(&value.payload);
}

absl::StatusOr<int64_t> GgufFile::GetInt(absl::string_view key) const {
  RF_ASSIGN_OR_RETURN(const GgufValue value, Value(key, false));
  return IntAt(key, value, 0);
}

absl::StatusOr<double> GgufFile::GetDouble(absl::string_view key) const {
  RF_ASSIGN_OR_RETURN(const GgufValue value, Value(key, false));
  return DoubleAt(key, value, 0);
}

absl::StatusOr<bool> GgufFile::GetBool(absl::string_view key) const {
  RF_ASSIGN_OR_RETURN(const GgufValue value, Value(key, false));
  if (value.type != GgufType::kBool) return WrongType(key, value, "a bool");
  return value.payload[0] != 0;
}

absl::StatusOr<std::vector<absl::string_view>> GgufFile::GetStrings(absl::string_view key) const {
  RF_ASSIGN_OR_RETURN(GgufValue value, Value(key, true));
  if (value.type != GgufType::kString) return WrongType(key, value, "an array of strings");
  std::vector<absl::string_view> all;
  all.reserve(value.count);
  for (uint64_t i = 0; i < value.count; ++i) all.push_back(TakeString(&value.payload));
  return all;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetInts(absl::string_view key) const {
  RF_ASSIGN_OR_RETURN(const GgufValue value, Value(key, true));
  return All(key, value, IntAt);
}

absl::StatusOr<std::vector<double>> GgufFile::GetDoubles(absl::string_view key) const {
  RF_ASSIGN_OR_RETURN(const GgufValue value, Value(key, true));
  return All(key, value, DoubleAt);
}

absl::StatusOr<absl::string_view> GgufFile::GetStringOr(absl::string_view key,
                                                        absl::string_view fallback) const {
  return Has(key) ? GetString(key) : fallback;
}
absl::StatusOr<int64_t> GgufFile::GetIntOr(absl::string_view key, int64_t fallback) const {
  return Has(key) ? GetInt(key) : fallback;
}
absl::StatusOr<double> GgufFile::GetDoubleOr(absl::string_view key, double fallback) const {
  return Has(key) ? GetDouble(key) : fallback;
}
absl::StatusOr<bool> GgufFile::GetBoolOr(absl::string_view key, bool fallback) const {
  return Has(key) ? GetBool(key) : fallback;
}

absl::StatusOr<TensorBytes> GgufFile::Tensor(absl::string_view name) const {
  const auto found = tensor_index_.find(name);
  if (found == tensor_index_.end()) {
    return base::Error(absl::StatusCode::kNotFound, "MISSING_TENSOR",
                       absl::StrCat("GGUF: tensor ", Quote(name), " is missing"));
  }
  const TensorInfo& info = tensors_[found->second];
  return TensorBytes{info, bytes_.substr(info.offset, info.byte_size)};
}

}  // namespace ridgefill::formats
