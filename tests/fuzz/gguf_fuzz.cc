// Whatever parses must be safe to read in full: every key through every getter, every tensor's first and last
// block.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/formats/gguf.h"

namespace ridgefill::formats {
namespace {

// By its reason, not its text: that quotes the key, which may say anything.
bool IsInteger(const absl::StatusOr<int64_t>& value) {
  const auto detail = base::GetErrorDetail(value.status());
  return value.ok() || (detail.has_value() && detail->reason == "GGUF_KEY_RANGE");
}

void ReadKeys(const GgufFile& file) {
  for (const absl::string_view key : file.keys()) {
    RF_CHECK(file.Has(key));
    int readable = 0;
    readable += file.GetString(key).ok();
    readable += IsInteger(file.GetInt(key));
    readable += file.GetDouble(key).ok();
    readable += file.GetBool(key).ok();
    RF_CHECK(readable <= 1);
    (void)file.GetStrings(key).ok();
    (void)file.GetInts(key).ok();
    (void)file.GetDoubles(key).ok();
  }
}

void ReadTensors(const GgufFile& file, absl::string_view bytes) {
  for (const TensorInfo& info : file.tensors()) {
    const auto tensor = file.Tensor(info.name);
    RF_CHECK(tensor.ok());
    RF_CHECK(tensor->bytes.size() == info.byte_size);
    RF_CHECK(tensor->bytes.data() + tensor->bytes.size() <= bytes.data() + bytes.size());
    std::vector<float> block(static_cast<size_t>(BlockElements(info.encoding)));
    const int64_t last = ElementCount(info) - static_cast<int64_t>(block.size());
    const bool first_ok = Dequantize(info.encoding, tensor->bytes, 0, absl::MakeSpan(block)).ok();
    RF_CHECK(Dequantize(info.encoding, tensor->bytes, last, absl::MakeSpan(block)).ok() == first_ok);
  }
}

}  // namespace
}  // namespace ridgefill::formats

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto file = ridgefill::formats::GgufFile::Parse(bytes);
  if (!file.ok()) return 0;
  ridgefill::formats::ReadKeys(*file);
  ridgefill::formats::ReadTensors(*file, bytes);
  return 0;
}
