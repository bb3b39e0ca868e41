#include "engine/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/tokenizer/utf8.h"

namespace ridgefill::tokenizer {
namespace {

constexpr auto kForm = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

absl::Status Failed(utf8proc_ssize_t error) {
  return base::Error(absl::StatusCode::kInternal, "NORMALIZER_FAILED",
                     absl::StrCat("utf8proc: ", utf8proc_errmsg(error)));
}

// Characters below U+0300 never decompose into something that does not compose again, nor combine.
bool IsTriviallyNfc(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0xCC; });
}

int CombiningClass(utf8proc_int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

absl::StatusOr<std::vector<utf8proc_int32_t>> Decompose(absl::string_view text) {
  std::vector<utf8proc_int32_t> out;
  out.reserve(text.size());
  std::array<utf8proc_int32_t, 32> buffer;  // the longest canonical decomposition has 4
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = NextUtf8(text.substr(i));
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(step.code_point),
                                                           buffer.data(), buffer.size(), kForm, nullptr);
    if (count < 0 || count > static_cast<utf8proc_ssize_t>(buffer.size())) return Failed(count);
    out.insert(out.end(), buffer.begin(), buffer.begin() + count);
    i += step.length;
  }
  return out;
}

// Puts each run of marks in order of combining class, equal classes as they came.
void SortMarks(std::vector<utf8proc_int32_t>& text) {
  auto begin = text.begin();
  while (begin != text.end()) {
    if (CombiningClass(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, text.end(), [](utf8proc_int32_t c) { return CombiningClass(c) == 0; });
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    begin = end;
  }
}

}  // namespace

absl::StatusOr<std::string> NormalizeNfc(absl::string_view valid_utf8) {
  if (IsTriviallyNfc(valid_utf8)) return std::string(valid_utf8);
  RF_ASSIGN_OR_RETURN(std::vector<utf8proc_int32_t> text, Decompose(valid_utf8));
  SortMarks(text);
  const utf8proc_ssize_t length =
      utf8proc_normalize_utf32(text.data(), static_cast<utf8proc_ssize_t>(text.size()), kForm);
  if (length < 0) return Failed(length);
  std::string out;
  out.reserve(valid_utf8.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i) AppendUtf8(static_cast<uint32_t>(text[i]), out);
  return out;
}

}  // namespace ridgefill::tokenizer
