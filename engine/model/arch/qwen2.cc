// Qwen2 and Qwen2.5: a Llama with biases on Q, K and V, its GGUF rows not permuted.
#include "engine/base/status.h"
#include "engine/model/arch_spec.h"
#include "engine/model/blocks.h"
#include "engine/model/decoder.h"

namespace ridgefill::model {
namespace {

ModelConfig WithBias(ModelConfig config) {
  config.qkv_bias = true;
  return config;
}

absl::StatusOr<ModelConfig> FromHf(const nlohmann::json& json) {
  RF_ASSIGN_OR_RETURN(ModelConfig config, DecoderFromHf("qwen2", json));
  return WithBias(std::move(config));
}

absl::StatusOr<ModelConfig> FromGguf(const formats::GgufFile& file) {
  RF_ASSIGN_OR_RETURN(ModelConfig config, DecoderFromGguf("qwen2", file));
  return WithBias(std::move(config));
}

std::vector<TensorSpec> Tensors(const ModelConfig& config) {
  return DecoderTensors(config, /*gguf_permuted=*/false);
}

absl::Status ForwardLayer(LayerRun& run) {
  RF_RETURN_IF_ERROR(AttentionBlock(run));
  return SwiGluBlock(run);
}

}  // namespace

extern const ArchSpec kArch_qwen2;
const ArchSpec kArch_qwen2 = {"qwen2", FromHf, FromGguf, Tensors, ForwardLayer};

}  // namespace ridgefill::model
