#include "engine/model/config.h"

#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace ridgefill::model {
namespace {

// Llama-3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended.
double ScaleLlama3(const RopeConfig& rope, double frequency) {
  const double turns = rope.original_context * frequency / (2 * std::numbers::pi);  // within the old context
  if (turns < rope.low_freq_factor) return frequency / rope.factor;
  if (turns > rope.high_freq_factor) return frequency;
  const double smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

double Scale(const RopeConfig& rope, int pair, double frequency) {
  if (!rope.frequency_divisors.empty()) return frequency / rope.frequency_divisors[pair];
  switch (rope.scaling) {
    case RopeScaling::kNone:
      return frequency;
    case RopeScaling::kLinear:
      return frequency / rope.factor;
    case RopeScaling::kLlama3:
      return ScaleLlama3(rope, frequency);
  }
  return frequency;
}

}  // namespace

kernels::RopeSpec MakeRopeSpec(const ModelConfig& config) {
  kernels::RopeSpec spec;
  spec.head_dim = config.head_dim;
  for (int pair = 0; pair < config.head_dim / 2; ++pair) {
    const double frequency = std::pow(config.rope.theta, -2.0 * pair / config.head_dim);
    spec.inverse_frequencies.push_back(Scale(config.rope, pair, frequency));
  }
  return spec;
}

base::ModelIdentity MakeIdentity(const std::string& name, const ModelConfig& config,
                                 const std::string& tokenizer_digest, const std::string& weights_digest) {
  base::ModelIdentity identity;
  identity.name = name;
  identity.arch = config.arch;
  identity.dimensions =
      absl::StrCat(config.layers, " layers, ", config.hidden, " wide, ", config.heads_q, "/", config.heads_kv,
                   " heads of ", config.head_dim, ", vocab ", config.vocab);
  identity.tokenizer_digest = tokenizer_digest;
  identity.weights_digest = weights_digest;
  return identity;
}

}  // namespace ridgefill::model
