#include <array>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/model/decoder.h"
#include "engine/model/decoder_checks.h"

namespace ridgefill::model {
namespace {

using formats::Json;

absl::StatusOr<int> Size(const Json& json, absl::string_view key, int64_t limit) {
  RF_ASSIGN_OR_RETURN(const int64_t value, formats::GetInt(json, key));
  return CheckedSize(key, value, limit);
}

absl::StatusOr<int> SizeOr(const Json& json, absl::string_view key, int64_t limit, int64_t fallback) {
  RF_ASSIGN_OR_RETURN(const int64_t value, formats::GetIntOr(json, key, fallback));
  return CheckedSize(key, value, limit);
}

absl::Status RefuseFlag(const Json& json, absl::string_view key) {
  RF_ASSIGN_OR_RETURN(const bool set, formats::GetBoolOr(json, key, false));
  return set ? UnsupportedConfig(key, "true", "false") : absl::OkStatus();
}

absl::Status RefuseWindows(const Json& json) {
  RF_ASSIGN_OR_RETURN(const bool used, formats::GetBoolOr(json, "use_sliding_window", true));
  if (const Json* window = formats::FindJson(json, "sliding_window"); used && window != nullptr) {
    return UnsupportedConfig("sliding_window", window->dump(), "full attention in every layer");
  }
  if (!formats::HasJson(json, "layer_types")) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const auto types, formats::GetStrings(json, "layer_types"));
  for (absl::string_view type : types) {
    if (type != "full_attention") return UnsupportedConfig("layer_types", type, "full_attention");
  }
  return absl::OkStatus();
}

// Fields that turn the model into one that this build does not compute.
absl::Status RefuseVariants(const Json& json) {
  RF_ASSIGN_OR_RETURN(const absl::string_view act, formats::GetStringOr(json, "hidden_act", "silu"));
  if (act != "silu") return UnsupportedConfig("hidden_act", act, "silu");
  for (absl::string_view key : {"num_experts", "num_local_experts", "n_routed_experts", "quantization_config",
                                "embedding_multiplier", "residual_multiplier", "logits_scaling"}) {
    if (const Json* value = formats::FindJson(json, key)) {
      return UnsupportedConfig(key, value->dump(), "models without this field");
    }
  }
  RF_RETURN_IF_ERROR(RefuseFlag(json, "mlp_bias"));
  return RefuseWindows(json);
}

absl::Status ReadPartialRotary(const Json& json) {
  RF_ASSIGN_OR_RETURN(const double share, formats::GetDoubleOr(json, "partial_rotary_factor", 1.0));
  if (share == 1.0) return absl::OkStatus();
  return UnsupportedConfig("partial_rotary_factor", absl::StrCat(share), "1");
}

absl::Status ReadLlama3(const Json& scaling, RopeConfig& rope) {
  RF_ASSIGN_OR_RETURN(rope.low_freq_factor, formats::GetDouble(scaling, "low_freq_factor"));
  RF_ASSIGN_OR_RETURN(rope.high_freq_factor, formats::GetDouble(scaling, "high_freq_factor"));
  RF_ASSIGN_OR_RETURN(rope.original_context, Size(scaling, "original_max_position_embeddings", kMaxContext));
  return absl::OkStatus();
}

absl::Status ReadScaling(const Json& scaling, RopeConfig& rope) {
  RF_ASSIGN_OR_RETURN(const absl::string_view old_name, formats::GetStringOr(scaling, "type", "default"));
  RF_ASSIGN_OR_RETURN(const absl::string_view kind, formats::GetStringOr(scaling, "rope_type", old_name));
  if (kind != "default" && kind != "linear" && kind != "llama3") return UnsupportedRope(kind);
  constexpr std::array kKnown = {"type",
                                 "rope_type",
                                 "rope_theta",
                                 "factor",
                                 "low_freq_factor",
                                 "high_freq_factor",
                                 "original_max_position_embeddings",
                                 "partial_rotary_factor"};
  for (const auto& [key, value] : scaling.items()) {
    if (!absl::c_linear_search(kKnown, key)) return UnsupportedRope(absl::StrCat(kind, " with ", key));
  }
  RF_RETURN_IF_ERROR(ReadPartialRotary(scaling));
  RF_ASSIGN_OR_RETURN(rope.theta, formats::GetDoubleOr(scaling, "rope_theta", rope.theta));
  if (kind == "default") return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(rope.factor, formats::GetDouble(scaling, "factor"));
  rope.scaling = kind == "linear" ? RopeScaling::kLinear : RopeScaling::kLlama3;
  return kind == "llama3" ? ReadLlama3(scaling, rope) : absl::OkStatus();
}

absl::Status ReadRope(const Json& json, RopeConfig& rope) {
  RF_RETURN_IF_ERROR(ReadPartialRotary(json));
  RF_ASSIGN_OR_RETURN(rope.theta, formats::GetDoubleOr(json, "rope_theta", rope.theta));
  // transformers 5 writes rope_parameters, earlier ones rope_theta and rope_scaling.
  for (absl::string_view key : {"rope_scaling", "rope_parameters"}) {
    if (!formats::HasJson(json, key)) continue;
    RF_ASSIGN_OR_RETURN(const Json* scaling, formats::GetObject(json, key));
    RF_RETURN_IF_ERROR(base::WithContext(ReadScaling(*scaling, rope), key));
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const Json& json, ModelConfig& c) {
  RF_ASSIGN_OR_RETURN(c.layers, Size(json, "num_hidden_layers", kMaxLayers));
  RF_ASSIGN_OR_RETURN(c.hidden, Size(json, "hidden_size", kMaxWidth));
  RF_ASSIGN_OR_RETURN(c.heads_q, Size(json, "num_attention_heads", kMaxHeads));
  RF_ASSIGN_OR_RETURN(c.heads_kv, SizeOr(json, "num_key_value_heads", kMaxHeads, c.heads_q));
  RF_ASSIGN_OR_RETURN(c.head_dim, SizeOr(json, "head_dim", kMaxHeadDim, c.hidden / c.heads_q));
  RF_ASSIGN_OR_RETURN(c.ffn, Size(json, "intermediate_size", kMaxWidth));
  RF_ASSIGN_OR_RETURN(c.vocab, Size(json, "vocab_size", kMaxVocab));
  RF_ASSIGN_OR_RETURN(c.context, Size(json, "max_position_embeddings", kMaxContext));
  if (!formats::HasJson(json, "head_dim") && c.hidden % c.heads_q != 0) {
    return BadConfig("hidden_size", absl::StrCat("is ", c.hidden, ", must be a multiple of the ", c.heads_q,
                                                 " heads where head_dim is not given"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> DecoderFromHf(absl::string_view arch, const Json& json) {
  ModelConfig config;
  config.arch = std::string(arch);
  RF_RETURN_IF_ERROR(RefuseVariants(json));
  RF_RETURN_IF_ERROR(ReadSizes(json, config));
  RF_RETURN_IF_ERROR(ReadRope(json, config.rope));
  RF_ASSIGN_OR_RETURN(const double eps, formats::GetDoubleOr(json, "rms_norm_eps", 1e-6));
  config.rms_eps = static_cast<float>(eps);
  RF_ASSIGN_OR_RETURN(config.tied_head, formats::GetBoolOr(json, "tie_word_embeddings", false));
  RF_RETURN_IF_ERROR(CheckConfig(config));
  return config;
}

}  // namespace ridgefill::model
