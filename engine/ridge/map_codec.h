// How a map's numbers are stored: bf16, or int8 codes with one bf16 scale per 128 input columns. Pure
// functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace ridgefill::ridge {

inline constexpr int64_t kScaleColumns =
    128;  // input columns that share a scale; a row's last group may be short

// W [rows, columns] as codes * scale.
struct Int8Weight {
  std::vector<int8_t> codes;    // [rows, columns]
  std::vector<uint16_t> scale;  // bf16 [rows, ScaleGroups(columns)]
};

inline int64_t ScaleGroups(int64_t columns) { return (columns + kScaleColumns - 1) / kScaleColumns; }

std::vector<uint16_t> EncodeBf16(absl::Span<const float> values);

// scale = bf16(absmax / 127), 1 for a group of zeros; code = round half to even(value / scale), within +-127.
Int8Weight EncodeInt8(absl::Span<const float> values, int64_t columns);
// out [rows, columns]; the spans must agree.
void DecodeInt8(absl::Span<const int8_t> codes, absl::Span<const uint16_t> scale, int64_t columns,
                absl::Span<float> out);

}  // namespace ridgefill::ridge
