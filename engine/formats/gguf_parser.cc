#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/formats/gguf.h"
#include "engine/formats/quote.h"

namespace ridgefill::formats {
namespace {

constexpr uint64_t kSmallestValue = 8 + 1 + 4 + 1;           // key length, key, type, a byte
constexpr uint64_t kSmallestTensor = 8 + 1 + 4 + 8 + 4 + 8;  // name length, name, rank, one dim, type, offset
constexpr uint64_t kLongestKey = 65535;                      // both limits are the format's
constexpr uint64_t kLongestTensorName = 64;
constexpr uint64_t kLargestAlignment = 65536;

absl::Status Refuse(absl::string_view reason, absl::string_view message,
                    std::vector<std::pair<std::string, std::string>> metadata = {}) {
  return base::Error(absl::StatusCode::kInvalidArgument, reason, absl::StrCat("GGUF: ", message),
                     std::move(metadata));
}

// The error names the key or tensor twice: escaped in the message, and in the metadata for a program.
absl::Status RefuseNamed(absl::string_view kind, absl::string_view name, absl::string_view reason,
                         absl::string_view message) {
  const std::string quoted = Quote(name);
  return Refuse(reason, absl::StrCat(kind, " ", quoted, " ", message), {{std::string(kind), quoted}});
}

// Bytes of one element, 0 for strings, arrays and unknown types.
uint64_t ScalarBytes(uint32_t type) {
  constexpr uint8_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < sizeof(kBytes) ? kBytes[type] : 0;
}

// ggml's numbers of the tensor types that a model may use.
std::optional<Encoding> EncodingOf(uint32_t ggml_type) {
  switch (ggml_type) {
    case 0:
      return Encoding::kF32;
    case 1:
      return Encoding::kF16;
    case 2:
      return Encoding::kQ4_0;
    case 3:
      return Encoding::kQ4_1;
    case 8:
      return Encoding::kQ8_0;
    case 12:
      return Encoding::kQ4_K;
    case 14:
      return Encoding::kQ6_K;
    case 24:
      return Encoding::kI8;
    case 25:
      return Encoding::kI16;
    case 26:
      return Encoding::kI32;
    case 27:
      return Encoding::kI64;
    case 28:
      return Encoding::kF64;
    case 30:
      return Encoding::kBF16;
    default:
      return std::nullopt;
  }
}

}  // namespace

// Reads front to back; `rest_` is what is left of the file.
class GgufParser {
 public:
  explicit GgufParser(absl::string_view bytes) : rest_(bytes) { file_.bytes_ = bytes; }

  absl::StatusOr<GgufFile> Run() {
    uint64_t tensors = 0, values = 0;
    RF_RETURN_IF_ERROR(ReadPreamble(&tensors, &values));
    for (uint64_t i = 0; i < values; ++i) RF_RETURN_IF_ERROR(ReadValue());
    for (uint64_t i = 0; i < tensors; ++i) RF_RETURN_IF_ERROR(ReadTensorInfo());
    RF_RETURN_IF_ERROR(PlaceTensors());
    RF_RETURN_IF_ERROR(RefuseOverlaps());
    return std::move(file_);
  }

 private:
  template <typename T>
  absl::Status Read(absl::string_view what, T* value) {
    if (rest_.size() < sizeof(T)) {
      return Refuse("GGUF_TRUNCATED",
                    absl::StrCat("the file ends at byte ", file_.bytes_.size(), " inside ", what));
    }
    std::memcpy(value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return absl::OkStatus();
  }

  absl::Status ReadString(absl::string_view what, absl::string_view* value) {
    uint64_t length = 0;
    RF_RETURN_IF_ERROR(Read(what, &length));
    if (length > rest_.size()) {
      return Refuse("GGUF_STRING_LENGTH",
                    absl::StrCat(what, " claims ", length, " bytes, the file has ", rest_.size(), " left"));
    }
    *value = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return absl::OkStatus();
  }

  absl::Status ReadName(absl::string_view what, uint64_t longest, absl::string_view* name) {
    RF_RETURN_IF_ERROR(ReadString(what, name));
    if (!name->empty() && name->size() <= longest) return absl::OkStatus();
    return Refuse("GGUF_NAME_LENGTH", absl::StrCat(what, " ", Quote(*name), " has ", name->size(),
                                                   " bytes, 1 to ", longest, " are allowed"));
  }

  absl::Status ReadPreamble(uint64_t* tensors, uint64_t* values) {
    if (rest_.substr(0, 4) != "GGUF")
      return Refuse("GGUF_MAGIC", "the file does not start with the bytes GGUF");
    rest_.remove_prefix(4);
    uint32_t version = 0;
    RF_RETURN_IF_ERROR(Read("the version", &version));
    if (version != 0 && (version & 0xffff) == 0) {
      return Refuse("GGUF_ENDIAN", "the file is big endian, only little endian is supported");
    }
    if (version != 3)
      return Refuse("GGUF_VERSION", absl::StrCat("version ", version, ", only 3 is supported"));
    RF_RETURN_IF_ERROR(Read("the tensor count", tensors));
    RF_RETURN_IF_ERROR(Read("the metadata count", values));
    RF_RETURN_IF_ERROR(CheckCount("the tensor count", *tensors, kSmallestTensor));
    return CheckCount("the metadata count", *values, kSmallestValue);
  }

  absl::Status CheckCount(absl::string_view what, uint64_t count, uint64_t smallest) {
    if (count <= rest_.size() / smallest) return absl::OkStatus();
    return Refuse("GGUF_COUNT", absl::StrCat(what, " is ", count, ", the ", rest_.size(),
                                             " bytes left hold at most ", rest_.size() / smallest));
  }

  absl::Status ReadValue() {
    absl::string_view key;
    uint32_t type = 0;
    RF_RETURN_IF_ERROR(ReadName("key", kLongestKey, &key));
    RF_RETURN_IF_ERROR(Read("a value type", &type));
    GgufValue value;
    value.is_array = type == static_cast<uint32_t>(GgufType::kArray);
    if (value.is_array) {
      RF_RETURN_IF_ERROR(Read("an array type", &type));
      RF_RETURN_IF_ERROR(Read("an array length", &value.count));
      if (type == static_cast<uint32_t>(GgufType::kArray)) {
        return RefuseNamed("key", key, "GGUF_NESTED_ARRAY", "is an array of arrays, which is not supported");
      }
    }
    if (type > static_cast<uint32_t>(GgufType::kF64)) {
      return RefuseNamed("key", key, "GGUF_VALUE_TYPE",
                         absl::StrCat("has the unknown type ", type, ", 0 to 12 exist"));
    }
    value.type = static_cast<GgufType>(type);
    RF_RETURN_IF_ERROR(ReadPayload(key, &value));
    if (!file_.values_.emplace(key, value).second) {
      return RefuseNamed("key", key, "GGUF_DUPLICATE_KEY", "is given twice");
    }
    file_.keys_.push_back(key);
    return absl::OkStatus();
  }

  absl::Status ReadPayload(absl::string_view key, GgufValue* value) {
    const bool is_string = value->type == GgufType::kString;
    const uint64_t element = is_string ? 8 : ScalarBytes(static_cast<uint32_t>(value->type));
    if (value->count > rest_.size() / element) {
      const absl::string_view reason = value->is_array ? "GGUF_COUNT" : "GGUF_TRUNCATED";
      return RefuseNamed("key", key, reason,
                         absl::StrCat("claims ", value->count, " elements of ", element,
                                      " bytes or more, the file has ", rest_.size(), " left"));
    }
    const absl::string_view start = rest_;
    if (is_string) {
      absl::string_view text;
      for (uint64_t i = 0; i < value->count; ++i) {
        RF_RETURN_IF_ERROR(
            base::WithContext(ReadString("a string", &text), absl::StrCat("key ", Quote(key))));
      }
    } else {
      rest_.remove_prefix(value->count * element);
    }
    value->payload = start.substr(0, start.size() - rest_.size());
    if (value->type == GgufType::kBool) return CheckBools(key, value->payload);
    return absl::OkStatus();
  }

  static absl::Status CheckBools(absl::string_view key, absl::string_view bytes) {
    for (const char byte : bytes) {
      if (byte != 0 && byte != 1) {
        return RefuseNamed("key", key, "GGUF_BOOL", "holds a bool that is neither 0 nor 1");
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadTensorInfo() {
    absl::string_view name;
    RF_RETURN_IF_ERROR(ReadName("tensor name", kLongestTensorName, &name));
    TensorInfo info;
    info.name = std::string(name);
    uint32_t type = 0;
    RF_RETURN_IF_ERROR(ReadDims(&info));
    RF_RETURN_IF_ERROR(Read("a tensor type", &type));
    RF_RETURN_IF_ERROR(Read("a tensor offset", &info.offset));
    const std::optional<Encoding> encoding = EncodingOf(type);
    if (!encoding) {
      return RefuseNamed(
          "tensor", name, "GGUF_TENSOR_TYPE",
          absl::StrCat("has ggml type ", type,
                       "; supported are F32 F16 BF16 Q4_0 Q4_1 Q8_0 Q4_K Q6_K F64 I8 I16 I32 I64"));
    }
    info.encoding = *encoding;
    const absl::StatusOr<uint64_t> byte_size = ByteSize(info.encoding, info.dims);
    if (!byte_size.ok()) return InTensor(byte_size.status(), name);
    info.byte_size = *byte_size;
    if (!file_.tensor_index_.emplace(name, file_.tensors_.size()).second) {
      return RefuseNamed("tensor", name, "GGUF_DUPLICATE_TENSOR", "is given twice");
    }
    file_.tensors_.push_back(std::move(info));
    return absl::OkStatus();
  }

  static absl::Status InTensor(const absl::Status& status, absl::string_view name) {
    return RefuseNamed("tensor", name, base::GetErrorDetail(status)->reason, status.message());
  }

  // Innermost first in the file.
  absl::Status ReadDims(TensorInfo* info) {
    uint32_t rank = 0;
    RF_RETURN_IF_ERROR(Read("a dimension count", &rank));
    if (rank < 1 || rank > kMaxDims) {
      return RefuseNamed("tensor", info->name, "TENSOR_DIMENSIONS",
                         absl::StrCat("has ", rank, " dimensions, 1 to ", kMaxDims, " are allowed"));
    }
    info->dims.resize(rank);
    for (uint32_t i = 0; i < rank; ++i) {
      RF_RETURN_IF_ERROR(Read("a dimension", &info->dims[rank - 1 - i]));
      if (info->dims[rank - 1 - i] == 0) {
        return RefuseNamed("tensor", info->name, "TENSOR_DIMENSIONS", "has a dimension of 0");
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Alignment() const {
    constexpr absl::string_view kKey = "general.alignment";
    if (!file_.Has(kKey)) return 32;
    RF_ASSIGN_OR_RETURN(const int64_t alignment, file_.GetInt(kKey));
    const uint64_t value = static_cast<uint64_t>(alignment);
    if (alignment < 8 || value > kLargestAlignment || !std::has_single_bit(value)) {
      return RefuseNamed(
          "key", kKey, "GGUF_ALIGNMENT",
          absl::StrCat("is ", alignment, ", must be a power of two from 8 to ", kLargestAlignment));
    }
    return value;
  }

  // Offsets count from the aligned end of the header; from here on they count from the start of the file.
  absl::Status PlaceTensors() {
    RF_ASSIGN_OR_RETURN(const uint64_t alignment, Alignment());
    const uint64_t header = file_.bytes_.size() - rest_.size();
    const uint64_t data = (header + alignment - 1) / alignment * alignment;
    const uint64_t available = file_.bytes_.size() - std::min<uint64_t>(data, file_.bytes_.size());
    for (TensorInfo& info : file_.tensors_) {
      if (info.offset % alignment != 0) {
        return RefuseNamed("tensor", info.name, "GGUF_OFFSET_ALIGNMENT",
                           absl::StrCat("starts at offset ", info.offset, ", no multiple of ", alignment));
      }
      if (info.offset > available || info.byte_size > available - info.offset) {
        return RefuseNamed("tensor", info.name, "GGUF_OFFSET_RANGE",
                           absl::StrCat("takes ", info.byte_size, " bytes at offset ", info.offset,
                                        ", the file has ", available, " bytes of data"));
      }
      info.offset += data;
    }
    return absl::OkStatus();
  }

  absl::Status RefuseOverlaps() const {
    std::vector<const TensorInfo*> order;
    for (const TensorInfo& info : file_.tensors_) order.push_back(&info);
    std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i - 1]->offset + order[i - 1]->byte_size > order[i]->offset) {
        return RefuseNamed("tensor", order[i]->name, "GGUF_OVERLAP",
                           absl::StrCat("overlaps tensor ", Quote(order[i - 1]->name)));
      }
    }
    return absl::OkStatus();
  }

  absl::string_view rest_;
  GgufFile file_;
};

absl::StatusOr<GgufFile> GgufFile::Parse(absl::string_view bytes) { return GgufParser(bytes).Run(); }

}  // namespace ridgefill::formats
