// What a model is, independent of where its weights lie.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/model_identity.h"
#include "kernels/api/attention.h"

namespace ridgefill::model {

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3 };

struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;            // kLinear, kLlama3
  double low_freq_factor = 1.0;   // kLlama3
  double high_freq_factor = 4.0;  // kLlama3
  int original_context = 8192;    // kLlama3
  // GGUF stores Llama-3 scaling as a divisor per pair (tensor rope_freqs.weight) [head_dim / 2]; wins when
  // not empty.
  std::vector<float> frequency_divisors;
};

struct ModelConfig {
  std::string arch;  // name of the ArchSpec
  int layers = 0;
  int hidden = 0;  // model width d
  int heads_q = 0;
  int heads_kv = 0;
  int head_dim = 0;
  int ffn = 0;
  int vocab = 0;
  int context = 0;  // longest sequence the model was made for
  float rms_eps = 1e-5f;
  RopeConfig rope;
  bool tied_head = false;  // the output head is the embedding
  bool qkv_bias = false;

  int kv_width() const { return heads_kv * head_dim; }
};

// RoPE angles with the scaling rule folded in.
kernels::RopeSpec MakeRopeSpec(const ModelConfig& config);

// The identity of a model: `dimensions` from the config, the digests from its source and its tokenizer.
base::ModelIdentity MakeIdentity(const std::string& name, const ModelConfig& config,
                                 const std::string& tokenizer_digest, const std::string& weights_digest);

}  // namespace ridgefill::model
