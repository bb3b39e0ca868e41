#include "engine/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace ridgefill::base {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}

uint32_t Portable(absl::string_view bytes, uint32_t crc) {
  static constexpr std::array<uint32_t, 256> kTable = MakeTable();
  for (unsigned char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ byte) & 0xff];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t Hardware(absl::string_view bytes, uint32_t crc) {
  uint64_t wide = crc;
  while (bytes.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    wide = _mm_crc32_u64(wide, word);
    bytes.remove_prefix(8);
  }
  crc = static_cast<uint32_t>(wide);
  for (unsigned char byte : bytes) crc = _mm_crc32_u8(crc, byte);
  return crc;
}
#endif

}  // namespace

uint32_t Crc32c(absl::string_view bytes, uint32_t crc) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~Hardware(bytes, ~crc);
#endif
  return ~Portable(bytes, ~crc);
}

}  // namespace ridgefill::base
