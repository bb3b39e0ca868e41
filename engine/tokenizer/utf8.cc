#include "engine/tokenizer/utf8.h"

namespace ridgefill::tokenizer {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Lead {
  int length = 0;                   // of the sequence; 0: no sequence starts so
  uint8_t low = 0x80, high = 0xBF;  // range of the second byte
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

}  // namespace

Utf8Step NextUtf8(absl::string_view bytes) {
  const uint8_t first = static_cast<uint8_t>(bytes[0]);
  const Lead lead = LeadOf(first);
  if (lead.length == 0) return {Utf8Step::kInvalid, 1};
  if (lead.length == 1) return {Utf8Step::kValid, 1, first};
  uint32_t code_point = first & (0x7F >> lead.length);
  for (int i = 1; i < lead.length; ++i) {
    if (static_cast<size_t>(i) >= bytes.size()) return {Utf8Step::kIncomplete, i};
    const uint8_t byte = static_cast<uint8_t>(bytes[i]);
    if (byte < (i == 1 ? lead.low : 0x80) || byte > (i == 1 ? lead.high : 0xBF))
      return {Utf8Step::kInvalid, i};
    code_point = code_point << 6 | (byte & 0x3F);
  }
  return {Utf8Step::kValid, lead.length, code_point};
}

std::optional<size_t> FindInvalidUtf8(absl::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Step step = NextUtf8(bytes.substr(i));
    if (step.kind != Utf8Step::kValid) return i;
    i += step.length;
  }
  return std::nullopt;
}

std::string TakeUtf8(std::string& pending, bool final) {
  const absl::string_view bytes = pending;
  std::string out;
  size_t i = 0;
  while (i < bytes.size()) {
    const Utf8Step step = NextUtf8(bytes.substr(i));
    if (step.kind == Utf8Step::kIncomplete && !final) break;
    const absl::string_view text =
        step.kind == Utf8Step::kValid ? bytes.substr(i, step.length) : kReplacement;
    out.append(text.data(), text.size());
    i += step.length;
  }
  pending.erase(0, i);
  return out;
}

void AppendUtf8(uint32_t code_point, std::string& out) {
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point));
    return;
  }
  const int length = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
  constexpr uint8_t kLeadBits[] = {0, 0, 0xC0, 0xE0, 0xF0};
  out.push_back(static_cast<char>(kLeadBits[length] | code_point >> (6 * (length - 1))));
  for (int i = length - 2; i >= 0; --i)
    out.push_back(static_cast<char>(0x80 | ((code_point >> (6 * i)) & 0x3F)));
}

bool IsWhiteSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

size_t LastUtf8Start(absl::string_view bytes) {
  size_t i = bytes.size() - 1;
  while (i > 0 && (static_cast<uint8_t>(bytes[i]) & 0xC0) == 0x80) --i;
  return i;
}

}  // namespace ridgefill::tokenizer
