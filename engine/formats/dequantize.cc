// The ggml block formats. Each function is one block; the order of operations (and so the rounding) is that
// of the public `gguf` Python package: scale times integer in float, then plus the offset, every step
// rounded.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/float16.h"
#include "engine/base/status.h"
#include "engine/formats/tensor.h"

namespace ridgefill::formats {
namespace {

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

float LoadF16(const uint8_t* bytes) { return base::F16ToF32(Load<uint16_t>(bytes)); }

void BlockF32(const uint8_t* in, float* out) { *out = Load<float>(in); }
void BlockF16(const uint8_t* in, float* out) { *out = LoadF16(in); }
void BlockBF16(const uint8_t* in, float* out) { *out = base::BF16ToF32(Load<uint16_t>(in)); }

// d f16, 16 bytes: element i in the low nibble of byte i, element i + 16 in the high one.
void BlockQ40(const uint8_t* in, float* out) {
  const float d = LoadF16(in);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((in[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((in[2 + i] >> 4) - 8);
  }
}

// d f16, m f16, nibbles as in Q4_0.
void BlockQ41(const uint8_t* in, float* out) {
  const float d = LoadF16(in);
  const float m = LoadF16(in + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(in[4 + i] & 15) + m;
    out[i + 16] = d * static_cast<float>(in[4 + i] >> 4) + m;
  }
}

// d f16, 32 int8.
void BlockQ80(const uint8_t* in, float* out) {
  const float d = LoadF16(in);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(in[2 + i])) * d;
}

// Scale and minimum of sub-block j out of 12 packed bytes: six bits each, the upper four of them borrow two
// bits.
void UnpackScaleMin(const uint8_t* packed, int j, uint8_t* scale, uint8_t* min) {
  if (j < 4) {
    *scale = packed[j] & 63;
    *min = packed[j + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((packed[j + 4] & 15) | ((packed[j - 4] >> 2) & 0x30));
    *min = static_cast<uint8_t>((packed[j + 4] >> 4) | ((packed[j] >> 2) & 0x30));
  }
}

// d f16, dmin f16, 12 bytes of scales and minima, 128 bytes: 4 groups of 32 bytes, low nibbles then high
// nibbles.
void BlockQ4K(const uint8_t* in, float* out) {
  const float d = LoadF16(in);
  const float dmin = LoadF16(in + 2);
  for (int j = 0; j < 8; ++j) {
    uint8_t scale, min;
    UnpackScaleMin(in + 4, j, &scale, &min);
    const float dl = d * static_cast<float>(scale);
    const float ml = dmin * static_cast<float>(min);
    const uint8_t* quants = in + 16 + (j / 2) * 32;
    const int shift = (j % 2) * 4;
    for (int i = 0; i < 32; ++i) out[j * 32 + i] = dl * static_cast<float>((quants[i] >> shift) & 15) - ml;
  }
}

// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 int8 scales, d f16. Two halves of 128 elements,
// each four rows of 32: row r has its nibbles in 32 bytes at (r % 2) * 32 (low for r < 2, else high) and its
// pair at shift 2r.
void BlockQ6K(const uint8_t* in, float* out) {
  const uint8_t* scales = in + 192;
  const float d = LoadF16(in + 208);
  for (int row = 0; row < 8; ++row) {
    const int half = row / 4, r = row % 4;
    const uint8_t* low = in + half * 64 + (r % 2) * 32;
    const uint8_t* high = in + 128 + half * 32;
    for (int i = 0; i < 32; ++i) {
      const int q = ((low[i] >> (r / 2 * 4)) & 15) | (((high[i] >> (2 * r)) & 3) << 4);
      const float scale = d * static_cast<float>(static_cast<int8_t>(scales[row * 2 + i / 16]));
      out[row * 32 + i] = scale * static_cast<float>(q - 32);
    }
  }
}

template <void (*block)(const uint8_t*, float*)>
void EachBlock(Encoding encoding, const uint8_t* in, absl::Span<float> out) {
  const int64_t elements = BlockElements(encoding), bytes = BlockBytes(encoding);
  const int64_t blocks = static_cast<int64_t>(out.size()) / elements;
  for (int64_t i = 0; i < blocks; ++i) block(in + i * bytes, out.data() + i * elements);
}

using Widener = void (*)(Encoding, const uint8_t*, absl::Span<float>);

Widener WidenerOf(Encoding encoding) {
  switch (encoding) {
    case Encoding::kF32:
      return EachBlock<BlockF32>;
    case Encoding::kF16:
      return EachBlock<BlockF16>;
    case Encoding::kBF16:
      return EachBlock<BlockBF16>;
    case Encoding::kQ4_0:
      return EachBlock<BlockQ40>;
    case Encoding::kQ4_1:
      return EachBlock<BlockQ41>;
    case Encoding::kQ8_0:
      return EachBlock<BlockQ80>;
    case Encoding::kQ4_K:
      return EachBlock<BlockQ4K>;
    case Encoding::kQ6_K:
      return EachBlock<BlockQ6K>;
    default:
      return nullptr;
  }
}

}  // namespace

absl::Status Dequantize(Encoding encoding, absl::string_view bytes, int64_t begin, absl::Span<float> out) {
  const Widener widen = WidenerOf(encoding);
  if (widen == nullptr) {
    return base::Error(absl::StatusCode::kInvalidArgument, "TENSOR_ENCODING",
                       absl::StrCat(EncodingName(encoding), " is not an encoding of weights"));
  }
  const int64_t elements = BlockElements(encoding);
  const int64_t available = static_cast<int64_t>(bytes.size()) / BlockBytes(encoding);
  const int64_t first = begin / elements;
  const int64_t blocks = static_cast<int64_t>(out.size()) / elements;
  const bool aligned =
      begin >= 0 && begin % elements == 0 && static_cast<int64_t>(out.size()) % elements == 0;
  if (!aligned || first > available || blocks > available - first) {
    return base::Error(absl::StatusCode::kInvalidArgument, "TENSOR_RANGE",
                       absl::StrCat("elements [", begin, ", ", begin, " + ", out.size(), ") are not whole ",
                                    EncodingName(encoding), " blocks among ", available, " of ", elements));
  }
  widen(encoding, reinterpret_cast<const uint8_t*>(bytes.data()) + first * BlockBytes(encoding), out);
  return absl::OkStatus();
}

}  // namespace ridgefill::formats
