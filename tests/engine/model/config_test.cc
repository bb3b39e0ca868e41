// Configurations that this build would compute wrongly are refused by name, in both containers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/formats/gguf.h"
#include "engine/model/arch_spec.h"
#include "engine/model/config.h"
#include "tests/engine/formats/gguf_builder.h"
#include "tests/engine/formats/refusals.h"

namespace ridgefill::model {
namespace {

using formats::ExpectRefused;
using formats::GgufBuilder;
using nlohmann::json;

json Llama() {
  return {{"model_type", "llama"},    {"hidden_size", 64},
          {"intermediate_size", 96},  {"num_hidden_layers", 2},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"vocab_size", 320},        {"max_position_embeddings", 2048},
          {"rms_norm_eps", 1e-5},     {"hidden_act", "silu"}};
}

absl::StatusOr<ModelConfig> FromHf(const json& config) {
  return (*FindArch(config["model_type"].get<std::string>()))->from_hf(config);
}

TEST(HfConfig, ReadsWhatIsThereAndDerivesTheRest) {
  const auto config = FromHf(Llama());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->kv_width(), 32);
  EXPECT_EQ(config->rope.theta, 10000);
  EXPECT_FALSE(config->tied_head);
  EXPECT_FALSE(config->qkv_bias);
  json qwen = Llama();
  qwen["model_type"] = "qwen2";
  qwen["head_dim"] = 32;
  qwen["sliding_window"] = 1024;
  qwen["use_sliding_window"] = false;
  EXPECT_TRUE(FromHf(qwen)->qkv_bias);
  EXPECT_EQ(FromHf(qwen)->head_dim, 32);
}

TEST(HfConfig, ReadsBothSpellingsOfRope) {
  json old_style = Llama(), new_style = Llama();
  old_style["rope_theta"] = 5e5;
  old_style["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  new_style["rope_parameters"] = {{"rope_theta", 5e5}, {"rope_type", "linear"}, {"factor", 2.0}};
  for (const json& config : {old_style, new_style}) {
    const auto read = FromHf(config);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->rope.theta, 5e5);
    EXPECT_EQ(read->rope.scaling, RopeScaling::kLinear);
    EXPECT_EQ(read->rope.factor, 2.0);
  }
}

struct Refusal {
  std::string key;
  json value;
  std::string reason, names;
};

TEST(HfConfig, RefusesByName) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const json dynamic = {{"type", "dynamic"}, {"factor", 4.0}};
  const json longrope = {{"type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {1.0}}};
  const json su = {{"type", "su"}};
  const json mrope = {{"type", "default"}, {"mrope_section", {1, 2}}};
  const json descending = {{"rope_type", "llama3"},
                           {"factor", 8.0},
                           {"low_freq_factor", 4.0},
                           {"high_freq_factor", 1.0},
                           {"original_max_position_embeddings", 8192}};
  const Refusal refusals[] = {
      {"rope_scaling", yarn, "UNSUPPORTED_ROPE_SCALING", "yarn"},
      {"rope_scaling", dynamic, "UNSUPPORTED_ROPE_SCALING", "dynamic"},
      {"rope_scaling", longrope, "UNSUPPORTED_ROPE_SCALING", "longrope"},
      {"rope_scaling", su, "UNSUPPORTED_ROPE_SCALING", "su"},
      {"rope_scaling", mrope, "UNSUPPORTED_ROPE_SCALING", "mrope_section"},
      {"rope_parameters", yarn, "UNSUPPORTED_ROPE_SCALING", "yarn"},
      {"rope_scaling", {{"type", "linear"}}, "JSON_MISSING_KEY", "factor"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 0.0}}, "MODEL_CONFIG", "factor"},
      {"rope_scaling", descending, "MODEL_CONFIG", "low_freq_factor"},
      {"rope_scaling", "linear", "JSON_TYPE", "rope_scaling"},
      {"partial_rotary_factor", 0.5, "UNSUPPORTED_CONFIG", "partial_rotary_factor"},
      {"sliding_window", 4096, "UNSUPPORTED_CONFIG", "sliding_window"},
      {"layer_types", {"full_attention", "sliding_attention"}, "UNSUPPORTED_CONFIG", "sliding_attention"},
      {"attention_bias", true, "UNSUPPORTED_CONFIG", "attention_bias"},
      {"mlp_bias", true, "UNSUPPORTED_CONFIG", "mlp_bias"},
      {"hidden_act", "gelu", "UNSUPPORTED_CONFIG", "gelu"},
      {"num_local_experts", 8, "UNSUPPORTED_CONFIG", "num_local_experts"},
      {"quantization_config", {{"bits", 4}}, "UNSUPPORTED_CONFIG", "quantization_config"},
      {"num_key_value_heads", 3, "MODEL_CONFIG", "multiple of the 3"},
      {"head_dim", 15, "MODEL_CONFIG", "head_dim"},
      {"num_hidden_layers", 0, "MODEL_CONFIG", "num_hidden_layers"},
      {"hidden_size", -64, "MODEL_CONFIG", "hidden_size"},
      {"hidden_size", int64_t{1} << 40, "MODEL_CONFIG", "hidden_size"},
      {"hidden_size", 66, "MODEL_CONFIG", "hidden_size"},
      {"hidden_size", "64", "JSON_TYPE", "hidden_size"},
      {"vocab_size", nullptr, "JSON_MISSING_KEY", "vocab_size"},
      {"rope_theta", -1.0, "MODEL_CONFIG", "rope_theta"},
      {"rms_norm_eps", -1.0, "MODEL_CONFIG", "rms_norm_eps"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.key + " = " + refusal.value.dump());
    json config = Llama();
    config[refusal.key] = refusal.value;
    ExpectRefused(FromHf(config).status(), refusal.reason, refusal.names);
  }
}

GgufBuilder LlamaGguf() {
  GgufBuilder file;
  file.String("general.architecture", "llama")
      .U32("llama.block_count", 2)
      .U32("llama.embedding_length", 64)
      .U32("llama.feed_forward_length", 96)
      .U32("llama.attention.head_count", 4)
      .U32("llama.attention.head_count_kv", 2)
      .U32("llama.context_length", 2048)
      .F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  file.AddF32("token_embd.weight", {64, 5}, std::vector<float>(320));
  return file;
}

absl::StatusOr<ModelConfig> FromGguf(const GgufBuilder& builder) {
  const std::string bytes = builder.Build();
  auto file = formats::GgufFile::Parse(bytes);
  EXPECT_TRUE(file.ok()) << file.status();
  return (*FindArch("llama"))->from_gguf(*file);
}

TEST(GgufConfig, ReadsWhatIsThereAndDerivesTheRest) {
  const auto config = FromGguf(LlamaGguf());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->vocab, 5);
  EXPECT_TRUE(config->tied_head);
  EXPECT_TRUE(config->rope.frequency_divisors.empty());
}

TEST(GgufConfig, RefusesByName) {
  const auto refused = [](const GgufBuilder& file, const std::string& reason, const std::string& names) {
    SCOPED_TRACE(names);
    ExpectRefused(FromGguf(file).status(), reason, names);
  };
  refused(LlamaGguf().String("llama.rope.scaling.type", "yarn"), "UNSUPPORTED_ROPE_SCALING", "yarn");
  refused(LlamaGguf().String("llama.rope.scaling.type", "longrope"), "UNSUPPORTED_ROPE_SCALING", "longrope");
  refused(LlamaGguf().String("llama.rope.scaling.type", "linear"), "GGUF_MISSING_KEY",
          "llama.rope.scaling.factor");
  refused(LlamaGguf().U32("llama.expert_count", 8), "UNSUPPORTED_CONFIG", "llama.expert_count");
  refused(LlamaGguf().U32("llama.attention.sliding_window", 512), "UNSUPPORTED_CONFIG", "sliding_window");
  refused(LlamaGguf().U32("llama.rope.dimension_count", 8), "UNSUPPORTED_CONFIG", "rope.dimension_count");
  refused(LlamaGguf().U32("llama.attention.value_length", 8), "UNSUPPORTED_CONFIG", "value_length");
  refused(LlamaGguf().AddF32("rope_freqs.weight", {4}, std::vector<float>(4, 1.0f)), "MODEL_CONFIG",
          "8 elements");
  refused(LlamaGguf().AddF32("rope_freqs.weight", {8}, std::vector<float>(8, 0.0f)), "MODEL_CONFIG",
          "holds 0");
  GgufBuilder empty;
  empty.String("general.architecture", "llama");
  refused(empty, "GGUF_MISSING_KEY", "llama.block_count");
}

TEST(RopeSpec, FoldsTheScalingIn) {
  ModelConfig config;
  config.head_dim = 4;
  config.rope.theta = 10000;
  EXPECT_THAT(MakeRopeSpec(config).inverse_frequencies,
              testing::ElementsAre(1.0, testing::DoubleNear(0.01, 1e-15)));
  config.rope.scaling = RopeScaling::kLinear;
  config.rope.factor = 4;
  EXPECT_THAT(MakeRopeSpec(config).inverse_frequencies,
              testing::ElementsAre(0.25, testing::DoubleNear(0.0025, 1e-15)));
  config.rope.frequency_divisors = {1.0f, 2.0f};
  EXPECT_THAT(MakeRopeSpec(config).inverse_frequencies,
              testing::ElementsAre(1.0, testing::DoubleNear(0.005, 1e-15)));
}

// Llama-3.1-8B's own numbers: short wavelengths stay, long ones are divided by 8, the fit between is
// continuous.
TEST(RopeSpec, BlendsLlama3) {
  ModelConfig config;
  config.head_dim = 128;
  config.rope.theta = 500000;
  const std::vector<double> plain = MakeRopeSpec(config).inverse_frequencies;
  config.rope.scaling = RopeScaling::kLlama3;
  config.rope.factor = 8;
  const std::vector<double> scaled = MakeRopeSpec(config).inverse_frequencies;
  int blended = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2 * M_PI / plain[i], ratio = plain[i] / scaled[i];
    if (wavelength < 8192 / 4.0) {
      EXPECT_EQ(ratio, 1.0) << i;
    }
    if (wavelength > 8192) {
      EXPECT_NEAR(ratio, 8.0, 1e-12) << i;
    }
    if (ratio > 1.0001 && ratio < 7.999) ++blended;
    if (i > 0) {
      EXPECT_LT(scaled[i], scaled[i - 1]);
    }
  }
  EXPECT_GE(blended, 5);
}

TEST(Identity, SpellsTheDimensions) {
  const auto config = FromHf(Llama());
  const base::ModelIdentity identity = MakeIdentity("tiny", *config, "t", "w");
  EXPECT_EQ(identity.dimensions, "2 layers, 64 wide, 4/2 heads of 16, vocab 320");
  EXPECT_EQ(identity.arch, "llama");
}

}  // namespace
}  // namespace ridgefill::model
