// Whatever parses must cover its data exactly and be safe to read in full.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/check.h"
#include "engine/formats/safetensors.h"

namespace ridgefill::formats {
namespace {

void ReadTensors(const SafetensorsFile& file, absl::string_view bytes) {
  const char* end = nullptr;
  for (const TensorInfo& info : file.tensors()) {
    const auto tensor = file.Tensor(info.name);
    RF_CHECK(tensor.ok());
    RF_CHECK(end == nullptr || tensor->bytes.data() == end);
    end = tensor->bytes.data() + tensor->bytes.size();
    std::vector<float> values(static_cast<size_t>(ElementCount(info)));
    (void)Dequantize(info.encoding, tensor->bytes, 0, absl::MakeSpan(values)).ok();
  }
  RF_CHECK(end == nullptr || end == bytes.data() + bytes.size());
}

}  // namespace
}  // namespace ridgefill::formats

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto file = ridgefill::formats::SafetensorsFile::Parse(bytes);
  if (file.ok()) ridgefill::formats::ReadTensors(*file, bytes);
  return 0;
}
