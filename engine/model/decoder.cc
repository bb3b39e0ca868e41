#include "engine/model/decoder.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/formats/quote.h"
#include "engine/model/decoder_checks.h"

namespace ridgefill::model {

absl::Status UnsupportedConfig(absl::string_view field, absl::string_view value,
                               absl::string_view supported) {
  return base::Error(
      absl::StatusCode::kUnimplemented, "UNSUPPORTED_CONFIG",
      absl::StrCat(field, " = ", formats::Quote(value), " is not supported; this build has ", supported),
      {{"field", std::string(field)}, {"value", std::string(value)}});
}

absl::Status UnsupportedRope(absl::string_view kind) {
  return base::Error(absl::StatusCode::kUnimplemented, "UNSUPPORTED_ROPE_SCALING",
                     absl::StrCat("RoPE scaling ", formats::Quote(kind),
                                  " is not supported; this build has default, linear and llama3"),
                     {{"rope_scaling", std::string(kind)}});
}

absl::Status BadConfig(absl::string_view field, absl::string_view problem) {
  return base::Error(absl::StatusCode::kInvalidArgument, "MODEL_CONFIG", absl::StrCat(field, " ", problem),
                     {{"field", std::string(field)}});
}

absl::StatusOr<int> CheckedSize(absl::string_view field, int64_t value, int64_t limit) {
  if (value >= 1 && value <= limit) return static_cast<int>(value);
  return BadConfig(field, absl::StrCat("is ", value, ", must be in [1, ", limit, "]"));
}

absl::Status CheckConfig(const ModelConfig& c) {
  if (c.heads_q % c.heads_kv != 0) {
    return BadConfig(
        "the number of attention heads",
        absl::StrCat("is ", c.heads_q, ", must be a multiple of the ", c.heads_kv, " key/value heads"));
  }
  if (c.head_dim % 2 != 0)
    return BadConfig("head_dim", absl::StrCat("is ", c.head_dim, ", must be even for RoPE"));
  if (!(c.rms_eps >= 0 && c.rms_eps < 1)) return BadConfig("rms_norm_eps", absl::StrCat("is ", c.rms_eps));
  const RopeConfig& r = c.rope;
  if (!(std::isfinite(r.theta) && r.theta > 1)) return BadConfig("rope_theta", absl::StrCat("is ", r.theta));
  if (!(std::isfinite(r.factor) && r.factor > 0))
    return BadConfig("RoPE factor", absl::StrCat("is ", r.factor));
  if (r.scaling == RopeScaling::kLlama3 &&
      !(r.low_freq_factor > 0 && r.high_freq_factor > r.low_freq_factor)) {
    return BadConfig(
        "RoPE low_freq_factor and high_freq_factor",
        absl::StrCat("are ", r.low_freq_factor, " and ", r.high_freq_factor, ", must ascend from above 0"));
  }
  return absl::OkStatus();
}

std::vector<TensorSpec> DecoderTensors(const ModelConfig& c, bool gguf_permuted) {
  const int64_t d = c.hidden, ffn = c.ffn, q = static_cast<int64_t>(c.heads_q) * c.head_dim,
                kv = c.kv_width();
  const int permuted_q = gguf_permuted ? c.heads_q : 0, permuted_k = gguf_permuted ? c.heads_kv : 0;
  std::vector<TensorSpec> specs = {{"model.embed_tokens.weight", "token_embd.weight", {c.vocab, d}}};
  for (int layer = 0; layer < c.layers; ++layer) {
    const std::string hf = absl::StrCat("model.layers.", layer, "."), gguf = absl::StrCat("blk.", layer, ".");
    const auto add = [&](absl::string_view hf_name, absl::string_view gguf_name, std::vector<int64_t> dims,
                         int rope_heads = 0) {
      specs.push_back(
          {absl::StrCat(hf, hf_name), absl::StrCat(gguf, gguf_name), std::move(dims), false, rope_heads});
    };
    add("input_layernorm.weight", "attn_norm.weight", {d});
    add("self_attn.q_proj.weight", "attn_q.weight", {q, d}, permuted_q);
    add("self_attn.k_proj.weight", "attn_k.weight", {kv, d}, permuted_k);
    add("self_attn.v_proj.weight", "attn_v.weight", {kv, d});
    if (c.qkv_bias) {
      add("self_attn.q_proj.bias", "attn_q.bias", {q}, permuted_q);
      add("self_attn.k_proj.bias", "attn_k.bias", {kv}, permuted_k);
      add("self_attn.v_proj.bias", "attn_v.bias", {kv});
    }
    add("self_attn.o_proj.weight", "attn_output.weight", {d, q});
    add("post_attention_layernorm.weight", "ffn_norm.weight", {d});
    add("mlp.gate_proj.weight", "ffn_gate.weight", {ffn, d});
    add("mlp.up_proj.weight", "ffn_up.weight", {ffn, d});
    add("mlp.down_proj.weight", "ffn_down.weight", {d, ffn});
  }
  specs.push_back({"model.norm.weight", "output_norm.weight", {d}});
  if (!c.tied_head) specs.push_back({"lm_head.weight", "output.weight", {c.vocab, d}});
  return specs;
}

}  // namespace ridgefill::model
