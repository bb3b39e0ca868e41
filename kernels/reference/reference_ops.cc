// Linear, pointwise and row ops of the reference backend.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/reference/reference_backend.h"

namespace ridgefill::kernels::reference {

absl::Status ReferenceBackend::DoEmbedding(Stream&, const EmbeddingArgs& a) {
  const int64_t d = a.out.dim(1);
  for (int64_t r = 0; r < a.out.dim(0); ++r) {
    const int64_t id = a.ids.as<int32_t>()[r];
    for (int64_t i = 0; i < d; ++i) Store(a.out, r * d + i, Load(a.table, id * d + i));
  }
  return absl::OkStatus();
}

absl::Status ReferenceBackend::DoRmsNorm(Stream&, const RmsNormArgs& a) {
  const int64_t d = a.x.dim(1);
  for (int64_t r = 0; r < a.x.dim(0); ++r) {
    double sum = 0;
    for (int64_t i = 0; i < d; ++i) sum += std::pow(static_cast<double>(Load(a.x, r * d + i)), 2);
    const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(d) + a.eps);
    for (int64_t i = 0; i < d; ++i) {
      Store(a.out, r * d + i, static_cast<float>(Load(a.x, r * d + i) * inverse * Load(a.weight, i)));
    }
  }
  return absl::OkStatus();
}

absl::Status ReferenceBackend::DoSwiGlu(Stream&, const SwiGluArgs& a) {
  const int64_t ffn = a.out.dim(1);
  for (int64_t r = 0; r < a.out.dim(0); ++r) {
    for (int64_t i = 0; i < ffn; ++i) {
      const double gate = Load(a.gate_up, r * 2 * ffn + i), up = Load(a.gate_up, r * 2 * ffn + ffn + i);
      Store(a.out, r * ffn + i, static_cast<float>(gate / (1.0 + std::exp(-gate)) * up));
    }
  }
  return absl::OkStatus();
}

absl::Status ReferenceBackend::DoCast(Stream&, const CastArgs& a) {
  for (int64_t i = 0; i < a.x.elements(); ++i) Store(a.out, i, Load(a.x, i));
  return absl::OkStatus();
}

absl::Status ReferenceBackend::DoLinear(Stream&, const LinearArgs& a) {
  // Outputs in blocks whose weights stay in the L2 cache while all rows pass over them.
  constexpr int64_t kBlock = 64;
  const auto& weight = static_cast<const ReferenceLinear&>(*a.weight);
  const int64_t in = weight.in_features(), out = weight.out_features();
  for (int64_t begin = 0; begin < out; begin += kBlock) {
    const int64_t count = std::min(kBlock, out - begin);
    for (int64_t r = 0; r < a.x.dim(0); ++r) {
      std::array<double, kBlock> sum{};
      for (int64_t i = 0; i < in; ++i) {
        const double x = Load(a.x, r * in + i);
        const float* w = weight.column(i) + begin;
        for (int64_t j = 0; j < count; ++j) sum[j] += x * w[j];
      }
      for (int64_t j = 0; j < count; ++j) {
        const int64_t at = r * out + begin + j;
        const double old = a.accumulate ? Load(a.y, at) : 0.0;
        Store(a.y, at, static_cast<float>(old + sum[j] + weight.bias(begin + j)));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReferenceBackend::DoGram(Stream&, const GramArgs& a) {
  const int64_t m = a.x.dim(1), n = a.y.dim(1);
  std::vector<double> sum(n);
  for (int64_t i = 0; i < m; ++i) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t r = 0; r < a.x.dim(0); ++r) {
      const double x = a.x.as<float>()[r * m + i];
      const float* y = a.y.as<float>() + r * n;
      for (int64_t j = 0; j < n; ++j) sum[j] += x * y[j];
    }
    for (int64_t j = 0; j < n; ++j) a.c.as<float>()[i * n + j] = static_cast<float>(sum[j]);
  }
  return absl::OkStatus();
}

absl::Status ReferenceBackend::DoGatherRows(Stream&, const GatherRowsArgs& a) {
  const int64_t row_bytes = a.x.dim(1) * ByteSize(a.x.dtype);
  for (int64_t i = 0; i < a.index.dim(0); ++i) {
    std::memcpy(a.out.as<char>() + i * row_bytes, a.x.as<char>() + a.index.as<int32_t>()[i] * row_bytes,
                row_bytes);
  }
  return absl::OkStatus();
}

absl::Status ReferenceBackend::DoRowNorm(Stream&, const RowNormArgs& a) {
  const int64_t d = a.x.dim(1);
  for (int64_t r = 0; r < a.x.dim(0); ++r) {
    double sum = 0;
    for (int64_t i = 0; i < d; ++i) sum += std::pow(static_cast<double>(Load(a.x, r * d + i)), 2);
    a.out.as<float>()[r] = static_cast<float>(std::sqrt(sum));
  }
  return absl::OkStatus();
}

}  // namespace ridgefill::kernels::reference
