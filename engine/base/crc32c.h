// CRC-32C (Castagnoli), the checksum of every KV frame. Uses the SSE4.2 instruction where the CPU has it.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace ridgefill::base {

// Crc32c of `bytes`, continuing from the crc of what came before (0 at the start).
uint32_t Crc32c(absl::string_view bytes, uint32_t crc = 0);

}  // namespace ridgefill::base
