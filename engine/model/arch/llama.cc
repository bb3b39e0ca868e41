// Llama 1 to 3, SmolLM2 and all that call themselves `llama`: RMSNorm, RoPE, grouped-query attention, SwiGLU,
// no biases.
#include "engine/base/status.h"
#include "engine/model/arch_spec.h"
#include "engine/model/blocks.h"
#include "engine/model/decoder.h"

namespace ridgefill::model {
namespace {

absl::StatusOr<ModelConfig> FromHf(const nlohmann::json& json) {
  RF_ASSIGN_OR_RETURN(const bool bias, formats::GetBoolOr(json, "attention_bias", false));
  // It would put one on o_proj as well; no published checkpoint sets it.
  if (bias) return UnsupportedConfig("attention_bias", "true", "false for llama");
  return DecoderFromHf("llama", json);
}

absl::StatusOr<ModelConfig> FromGguf(const formats::GgufFile& file) { return DecoderFromGguf("llama", file); }

std::vector<TensorSpec> Tensors(const ModelConfig& config) {
  return DecoderTensors(config, /*gguf_permuted=*/true);
}

absl::Status ForwardLayer(LayerRun& run) {
  RF_RETURN_IF_ERROR(AttentionBlock(run));
  return SwiGluBlock(run);
}

}  // namespace

extern const ArchSpec kArch_llama;
const ArchSpec kArch_llama = {"llama", FromHf, FromGguf, Tensors, ForwardLayer};

}  // namespace ridgefill::model
