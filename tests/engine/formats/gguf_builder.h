// Writes GGUF bytes for tests: well-formed by default, with a knob for every lie that a file can tell.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/formats/gguf.h"

namespace ridgefill::formats {

template <typename T>
std::string RawBytes(T value) {
  std::string raw(sizeof(T), '\0');
  std::memcpy(raw.data(), &value, sizeof(T));
  return raw;
}

inline std::string GgufString(absl::string_view text) {
  return RawBytes<uint64_t>(text.size()) + std::string(text);
}

class GgufBuilder {
 public:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // innermost first, as in the file
    uint32_t ggml_type = 0;
    std::string bytes;
    int64_t offset = -1;  // -1: after the tensor before it, aligned
  };

  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment = 32;    // used for layout; also written when set through Alignment()
  int64_t tensor_count = -1;  // -1: the true one
  int64_t value_count = -1;

  // `type` and `payload` go in as they are.
  GgufBuilder& Raw(absl::string_view key, uint32_t type, absl::string_view payload) {
    values_ += GgufString(key) + RawBytes(type) + std::string(payload);
    ++values_written_;
    return *this;
  }
  GgufBuilder& String(absl::string_view key, absl::string_view text) { return Raw(key, 8, GgufString(text)); }
  GgufBuilder& U32(absl::string_view key, uint32_t value) { return Raw(key, 4, RawBytes(value)); }
  GgufBuilder& F32(absl::string_view key, float value) { return Raw(key, 6, RawBytes(value)); }
  GgufBuilder& Bool(absl::string_view key, bool value) {
    return Raw(key, 7, std::string(1, value ? '\1' : '\0'));
  }
  GgufBuilder& Array(absl::string_view key, uint32_t element_type, uint64_t count,
                     absl::string_view payload) {
    return Raw(key, 9, RawBytes(element_type) + RawBytes(count) + std::string(payload));
  }
  GgufBuilder& Alignment(uint64_t value) {
    alignment = value;
    return U32("general.alignment", static_cast<uint32_t>(value));
  }
  GgufBuilder& Add(Tensor tensor) {
    tensors_.push_back(std::move(tensor));
    return *this;
  }
  GgufBuilder& AddF32(absl::string_view name, std::vector<uint64_t> dims, const std::vector<float>& values) {
    std::string bytes(values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return Add({std::string(name), std::move(dims), 0, std::move(bytes)});
  }

  std::string Build() const {
    std::string infos, data;
    for (const Tensor& tensor : tensors_) {
      data.resize((data.size() + alignment - 1) / alignment * alignment);
      const uint64_t offset = tensor.offset < 0 ? data.size() : static_cast<uint64_t>(tensor.offset);
      infos += GgufString(tensor.name) + RawBytes<uint32_t>(tensor.dims.size());
      for (const uint64_t dim : tensor.dims) infos += RawBytes(dim);
      infos += RawBytes(tensor.ggml_type) + RawBytes(offset);
      data += tensor.bytes;
    }
    std::string file = magic + RawBytes(version);
    file += RawBytes<uint64_t>(tensor_count < 0 ? tensors_.size() : tensor_count);
    file += RawBytes<uint64_t>(value_count < 0 ? values_written_ : value_count);
    file += values_ + infos;
    file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data;
  }

 private:
  std::string values_;
  uint64_t values_written_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace ridgefill::formats
