#include "engine/ridge/map_codec.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/base/float16.h"

namespace ridgefill::ridge {
namespace {

uint16_t GroupScale(absl::Span<const float> group) {
  float absmax = 0;
  for (float value : group) absmax = std::max(absmax, std::fabs(value));
  const uint16_t scale = base::F32ToBF16(absmax / 127.0f);
  // Also where absmax / 127 is too small for bf16: a scale of zero could not be divided by.
  return base::BF16ToF32(scale) > 0 ? scale : base::F32ToBF16(1.0f);
}

// std::nearbyint rounds halves to even in the default rounding mode, which nobody here changes.
int8_t Code(float value, float scale) {
  return static_cast<int8_t>(std::clamp(std::nearbyint(value / scale), -127.0f, 127.0f));
}

}  // namespace

std::vector<uint16_t> EncodeBf16(absl::Span<const float> values) {
  std::vector<uint16_t> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), base::F32ToBF16);
  return out;
}

Int8Weight EncodeInt8(absl::Span<const float> values, int64_t columns) {
  RF_CHECK(columns > 0 && values.size() % columns == 0);
  Int8Weight out;
  out.codes.reserve(values.size());
  for (size_t row = 0; row < values.size(); row += columns) {
    for (int64_t column = 0; column < columns; column += kScaleColumns) {
      const auto group = values.subspan(row + column, std::min(kScaleColumns, columns - column));
      out.scale.push_back(GroupScale(group));
      const float scale = base::BF16ToF32(out.scale.back());
      for (float value : group) out.codes.push_back(Code(value, scale));
    }
  }
  return out;
}

void DecodeInt8(absl::Span<const int8_t> codes, absl::Span<const uint16_t> scale, int64_t columns,
                absl::Span<float> out) {
  const int64_t groups = ScaleGroups(columns), rows = static_cast<int64_t>(codes.size()) / columns;
  RF_CHECK(codes.size() == out.size() && static_cast<int64_t>(scale.size()) == rows * groups);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const float step = base::BF16ToF32(scale[row * groups + column / kScaleColumns]);
      out[row * columns + column] = static_cast<float>(codes[row * columns + column]) * step;
    }
  }
}

}  // namespace ridgefill::ridge
