#include "engine/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "engine/tokenizer/utf8.h"

namespace ridgefill::tokenizer {
namespace {

constexpr int kAlphabetEnd = 0x144;  // one past the highest character used

constexpr bool IsPrintable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Character -> byte, -1 where the character is not of the alphabet. Bytes that print stand for themselves,
// the others take the characters from U+0100 on, in order.
constexpr std::array<int16_t, kAlphabetEnd> MakeTable() {
  std::array<int16_t, kAlphabetEnd> table{};
  for (auto& entry : table) entry = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    table[IsPrintable(byte) ? byte : next++] = static_cast<int16_t>(byte);
  return table;
}

constexpr std::array<int16_t, kAlphabetEnd> kTable = MakeTable();

}  // namespace

std::optional<std::string> ByteLevelToBytes(absl::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = NextUtf8(text.substr(i));
    if (step.kind != Utf8Step::kValid || step.code_point >= kAlphabetEnd || kTable[step.code_point] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kTable[step.code_point]));
    i += step.length;
  }
  return bytes;
}

}  // namespace ridgefill::tokenizer
