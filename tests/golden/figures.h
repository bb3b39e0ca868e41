// The figures of tests/data/golden (made by make_golden.py) and the bounds that they are held to.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/formats/safetensors.h"
#include "kernels/api/tensor.h"

namespace ridgefill::golden {

inline const std::string kGoldenFolder = std::string(RIDGEFILL_SOURCE_DIR) + "/tests/data/golden/";

// Reads a checked-in tensor of stored type T.
template <typename T>
std::vector<T> ReadFigure(const formats::SafetensorsFile& file, const std::string& name) {
  const auto tensor = file.Tensor(name);
  RF_CHECK(tensor.ok());
  std::vector<T> values(formats::ElementCount(tensor->info));
  RF_CHECK(tensor->bytes.size() == values.size() * sizeof(T));
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

// 64 tokens that transformers chose greedily after `prompt`, and how sure it was.
struct Forced {
  std::vector<int32_t> prompt, tokens;
  std::vector<float> margin;  // top logit minus the second, per token
  std::vector<float> rms;     // of the logits, per token
  // The rows whose argmax is checked, and what to feed: prompt, then all but the last token.
  std::vector<int32_t> ids() const {
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), tokens.begin(), tokens.end() - 1);
    return all;
  }
  int64_t first_row() const { return static_cast<int64_t>(prompt.size()) - 1; }
};

// Largest rms error that a backend with bf16 K and V may have, as a share of the logits' rms, from
// independent roundings to bf16. In each layer K and V are rounded; with bf16 activations also what the four
// linears take, Q and K before RoPE and Q behind it, the softmax weights, and gate and up; and what the head
// takes. Each is 0.42 of a unit (2^-8) of rms over mantissas that are spread evenly in log, and is taken to
// reach the logits whole.
inline double RoundingBound(int layers, kernels::DType activations) {
  const double roundings = activations == kernels::DType::kBF16 ? 12.0 * layers + 1 : 2.0 * layers;
  return 0.42 * std::ldexp(1.0, -8) * std::sqrt(roundings);
}

inline double Rms(absl::Span<const float> values) {
  double sum = 0;
  for (float v : values) sum += static_cast<double>(v) * v;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

inline double RmsError(absl::Span<const float> a, absl::Span<const float> b) {
  RF_CHECK(a.size() == b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// How a backend's argmax follows the forced tokens. Every miss must lie where fp32 itself was undecided: its
// best two logits no farther apart than both off by the bound, towards each other.
struct Agreement {
  int positions = 0, misses = 0, clear_misses = 0;

  // logits [tokens, vocab]: the rows that chose each token.
  void Add(const Forced& forced, absl::Span<const float> logits, double bound) {
    const size_t vocab = logits.size() / forced.tokens.size();
    for (size_t i = 0; i < forced.tokens.size(); ++i) {
      const auto row = logits.subspan(i * vocab, vocab);
      const int64_t best = std::max_element(row.begin(), row.end()) - row.begin();
      ++positions;
      if (best == forced.tokens[i]) continue;
      ++misses;
      if (forced.margin[i] > 2 * bound * forced.rms[i]) ++clear_misses;
    }
  }
};

}  // namespace ridgefill::golden
