// Our parser must agree with the library's own on everything but what we refuse on purpose, and getters must
// not care.
#include <cstddef>
#include <cstdint>

#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/formats/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ridgefill::formats;  // NOLINT(build/namespaces): one function
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto json = ParseJson(bytes, {.max_bytes = 1 << 20, .max_depth = 64});
  const Json reference = Json::parse(data, data + size, nullptr, /*allow_exceptions=*/false);
  if (!json.ok()) {
    const std::string reason = ridgefill::base::GetErrorDetail(json.status())->reason;
    RF_CHECK(reference.is_discarded() || reason == "JSON_TOO_DEEP" || reason == "JSON_DUPLICATE_KEY");
    return 0;
  }
  RF_CHECK(*json == reference);
  for (const char* key : {"a", "a/b", "a/0", "", "/"}) {
    (void)GetInt(*json, key).ok();
    (void)GetDouble(*json, key).ok();
    (void)GetString(*json, key).ok();
    (void)GetInts(*json, key).ok();
    (void)GetStrings(*json, key).ok();
  }
  return 0;
}
