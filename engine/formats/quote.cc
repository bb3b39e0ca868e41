#include "engine/formats/quote.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace ridgefill::formats {

std::string Quote(absl::string_view untrusted) {
  constexpr size_t kLongest = 96;
  const bool clipped = untrusted.size() > kLongest;
  return absl::StrCat("\"", absl::CHexEscape(untrusted.substr(0, kLongest)), clipped ? "\"..." : "\"");
}

}  // namespace ridgefill::formats
