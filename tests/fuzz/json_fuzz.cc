// Our parser must agree with the library's own on everything but what we refuse on purpose, and getters must
// not care.
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/formats/json.h"

namespace ridgefill::formats {
namespace {

void Compare(const absl::StatusOr<Json>& json, const Json& reference) {
  if (json.ok()) {
    RF_CHECK(*json == reference);
    return;
  }
  const std::string reason = base::GetErrorDetail(json.status())->reason;
  RF_CHECK(reference.is_discarded() || reason == "JSON_TOO_DEEP" || reason == "JSON_DUPLICATE_KEY");
}

void ReadByPath(const Json& json) {
  for (const char* key : {"a", "a/b", "a/0", "", "/"}) {
    (void)GetInt(json, key).ok();
    (void)GetDouble(json, key).ok();
    (void)GetString(json, key).ok();
    (void)GetInts(json, key).ok();
    (void)GetStrings(json, key).ok();
  }
}

}  // namespace
}  // namespace ridgefill::formats

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using ridgefill::formats::Json;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto json = ridgefill::formats::ParseJson(bytes, {.max_bytes = 1 << 20, .max_depth = 64});
  ridgefill::formats::Compare(json, Json::parse(data, data + size, nullptr, /*allow_exceptions=*/false));
  if (json.ok()) ridgefill::formats::ReadByPath(*json);
  return 0;
}
