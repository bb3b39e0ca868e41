// A model of a few hundred weights, written as a GGUF file and as a Hugging Face folder from one set of
// values.
#pragma once

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/formats/json.h"
#include "engine/formats/safetensors.h"
#include "tests/engine/formats/gguf_builder.h"

namespace ridgefill::model {

class SyntheticModel {
 public:
  static constexpr int kHidden = 8, kHeads = 2, kKvHeads = 1, kHeadDim = 4, kFfn = 12, kVocab = 10,
                       kLayers = 2;

  struct Weight {
    std::string gguf_name;
    std::vector<int64_t> dims;
    std::vector<float> values;
    int rope_heads = 0;
  };

  explicit SyntheticModel(std::string arch) : arch_(std::move(arch)) {
    Add("model.embed_tokens.weight", "token_embd.weight", {kVocab, kHidden});
    for (int layer = 0; layer < kLayers; ++layer) AddLayer(layer);
    Add("model.norm.weight", "output_norm.weight", {kHidden});
    config = {{"model_type", arch_},       {"num_hidden_layers", kLayers},  {"hidden_size", kHidden},
              {"intermediate_size", kFfn}, {"num_attention_heads", kHeads}, {"num_key_value_heads", kKvHeads},
              {"vocab_size", kVocab},      {"max_position_embeddings", 64}, {"rms_norm_eps", 1e-5},
              {"rope_theta", 10000.0},     {"tie_word_embeddings", true},   {"hidden_act", "silu"}};
  }

  // What a test may spoil before it writes.
  std::map<std::string, Weight> weights;  // by Hugging Face name
  formats::Json config;

  void Add(const std::string& hf_name, const std::string& gguf_name, std::vector<int64_t> dims,
           int rope_heads = 0) {
    int64_t count = 1;
    for (const int64_t dim : dims) count *= dim;
    Weight weight{gguf_name, std::move(dims), {}, rope_heads};
    // Small multiples of 1/8: exact in every float format.
    for (int64_t i = 0; i < count; ++i)
      weight.values.push_back(static_cast<float>((next_++ * 37 % 251) - 125) / 8);
    weights[hf_name] = std::move(weight);
  }

  void WriteFolder(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    std::vector<formats::TensorBytes> tensors;
    for (const auto& [name, weight] : weights) {
      tensors.push_back({{name, formats::Encoding::kF32, weight.dims}, Bytes(weight.values)});
    }
    RF_CHECK(formats::WriteSafetensors((folder / "model.safetensors").string(), tensors).ok());
    RF_CHECK(base::WriteFileAtomically((folder / "config.json").string(), config.dump()).ok());
  }

  // The metadata without tensors, for a test to add to.
  formats::GgufBuilder Metadata() const {
    formats::GgufBuilder builder;
    builder.String("general.architecture", arch_);
    const auto add = [&](absl::string_view key, uint32_t value) {
      builder.U32(absl::StrCat(arch_, ".", key), value);
    };
    add("block_count", kLayers);
    add("embedding_length", kHidden);
    add("feed_forward_length", kFfn);
    add("attention.head_count", kHeads);
    add("attention.head_count_kv", kKvHeads);
    add("context_length", 64);
    builder.F32(absl::StrCat(arch_, ".attention.layer_norm_rms_epsilon"), 1e-5f);
    return builder;
  }

  void AddTensors(formats::GgufBuilder& builder) const {
    for (const auto& [name, weight] : weights) {
      const std::vector<uint64_t> innermost_first(weight.dims.rbegin(), weight.dims.rend());
      builder.AddF32(weight.gguf_name, innermost_first, weight.rope_heads ? Permuted(weight) : weight.values);
    }
  }

  void WriteGguf(const std::string& path) const {
    formats::GgufBuilder builder = Metadata();
    AddTensors(builder);
    RF_CHECK(base::WriteFileAtomically(path, builder.Build()).ok());
  }

 private:
  static absl::string_view Bytes(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }

  // Row order of llama.cpp's converter, spelt out for heads of four rows: each head's 0 1 2 3 becomes 0 2
  // 1 3.
  static std::vector<float> Permuted(const Weight& weight) {
    static_assert(kHeadDim == 4);
    constexpr int kOrder[] = {0, 2, 1, 3};
    const size_t rows = static_cast<size_t>(weight.dims[0]), width = weight.values.size() / rows;
    std::vector<float> out;
    for (size_t row = 0; row < rows; ++row) {
      const float* from = &weight.values[(row / 4 * 4 + kOrder[row % 4]) * width];
      out.insert(out.end(), from, from + width);
    }
    return out;
  }

  void AddLayer(int layer) {
    const std::string hf = absl::StrCat("model.layers.", layer, "."), gguf = absl::StrCat("blk.", layer, ".");
    const bool is_llama = arch_ == "llama";
    const int q_heads = is_llama ? kHeads : 0, k_heads = is_llama ? kKvHeads : 0;
    Add(hf + "input_layernorm.weight", gguf + "attn_norm.weight", {kHidden});
    Add(hf + "self_attn.q_proj.weight", gguf + "attn_q.weight", {kHeads * kHeadDim, kHidden}, q_heads);
    Add(hf + "self_attn.k_proj.weight", gguf + "attn_k.weight", {kKvHeads * kHeadDim, kHidden}, k_heads);
    Add(hf + "self_attn.v_proj.weight", gguf + "attn_v.weight", {kKvHeads * kHeadDim, kHidden});
    if (!is_llama) {
      Add(hf + "self_attn.q_proj.bias", gguf + "attn_q.bias", {kHeads * kHeadDim});
      Add(hf + "self_attn.k_proj.bias", gguf + "attn_k.bias", {kKvHeads * kHeadDim});
      Add(hf + "self_attn.v_proj.bias", gguf + "attn_v.bias", {kKvHeads * kHeadDim});
    }
    Add(hf + "self_attn.o_proj.weight", gguf + "attn_output.weight", {kHidden, kHeads * kHeadDim});
    Add(hf + "post_attention_layernorm.weight", gguf + "ffn_norm.weight", {kHidden});
    Add(hf + "mlp.gate_proj.weight", gguf + "ffn_gate.weight", {kFfn, kHidden});
    Add(hf + "mlp.up_proj.weight", gguf + "ffn_up.weight", {kFfn, kHidden});
    Add(hf + "mlp.down_proj.weight", gguf + "ffn_down.weight", {kHidden, kFfn});
  }

  std::string arch_;
  int next_ = 0;
};

}  // namespace ridgefill::model
