#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/model/decoder.h"
#include "engine/model/decoder_checks.h"

namespace ridgefill::model {
namespace {

using formats::GgufFile;

// Reads "<arch>.<key>".
class Metadata {
 public:
  Metadata(const GgufFile& file, absl::string_view arch) : file_(file), arch_(arch) {}

  std::string Key(absl::string_view key) const { return absl::StrCat(arch_, ".", key); }
  bool Has(absl::string_view key) const { return file_.Has(Key(key)); }
  absl::StatusOr<int> Size(absl::string_view key, int64_t limit) const {
    RF_ASSIGN_OR_RETURN(const int64_t value, file_.GetInt(Key(key)));
    return CheckedSize(Key(key), value, limit);
  }
  absl::StatusOr<int> SizeOr(absl::string_view key, int64_t limit, int64_t fallback) const {
    return Has(key) ? Size(key, limit) : CheckedSize(Key(key), fallback, limit);
  }
  absl::StatusOr<double> NumberOr(absl::string_view key, double fallback) const {
    return file_.GetDoubleOr(Key(key), fallback);
  }
  absl::StatusOr<absl::string_view> TextOr(absl::string_view key, absl::string_view fallback) const {
    return file_.GetStringOr(Key(key), fallback);
  }
  // The key is absent or zero.
  absl::Status Refuse(absl::string_view key) const {
    RF_ASSIGN_OR_RETURN(const int64_t value, file_.GetIntOr(Key(key), 0));
    return value == 0 ? absl::OkStatus() : UnsupportedConfig(Key(key), absl::StrCat(value), "0");
  }

 private:
  const GgufFile& file_;
  absl::string_view arch_;
};

absl::Status ReadSizes(const GgufFile& file, const Metadata& meta, ModelConfig& c) {
  RF_ASSIGN_OR_RETURN(c.layers, meta.Size("block_count", kMaxLayers));
  RF_ASSIGN_OR_RETURN(c.hidden, meta.Size("embedding_length", kMaxWidth));
  RF_ASSIGN_OR_RETURN(c.heads_q, meta.Size("attention.head_count", kMaxHeads));
  RF_ASSIGN_OR_RETURN(c.heads_kv, meta.SizeOr("attention.head_count_kv", kMaxHeads, c.heads_q));
  RF_ASSIGN_OR_RETURN(c.ffn, meta.Size("feed_forward_length", kMaxWidth));
  RF_ASSIGN_OR_RETURN(c.context, meta.Size("context_length", kMaxContext));
  RF_ASSIGN_OR_RETURN(const formats::TensorBytes embedding, file.Tensor("token_embd.weight"));
  const int64_t rows = embedding.info.dims.empty() ? 0 : embedding.info.dims[0];
  RF_ASSIGN_OR_RETURN(c.vocab, meta.SizeOr("vocab_size", kMaxVocab, rows));
  return absl::OkStatus();
}

absl::Status ReadHeadDim(const Metadata& meta, ModelConfig& c) {
  RF_ASSIGN_OR_RETURN(c.head_dim, meta.SizeOr("attention.key_length", kMaxHeadDim, c.hidden / c.heads_q));
  if (!meta.Has("attention.key_length") && c.hidden % c.heads_q != 0) {
    return BadConfig(meta.Key("embedding_length"),
                     absl::StrCat("is ", c.hidden, ", must be a multiple of the ", c.heads_q,
                                  " heads where key_length is not given"));
  }
  for (absl::string_view key : {"attention.value_length", "rope.dimension_count"}) {
    RF_ASSIGN_OR_RETURN(const int value, meta.SizeOr(key, kMaxHeadDim, c.head_dim));
    if (value != c.head_dim) {
      return UnsupportedConfig(meta.Key(key), absl::StrCat(value),
                               absl::StrCat("the key length, ", c.head_dim));
    }
  }
  return absl::OkStatus();
}

// llama.cpp's converter folds Llama-3 scaling into a divisor per pair.
absl::Status ReadDivisors(const GgufFile& file, ModelConfig& c) {
  constexpr absl::string_view kName = "rope_freqs.weight";
  if (!file.HasTensor(kName)) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const formats::TensorBytes stored, file.Tensor(kName));
  if (stored.info.dims != std::vector<int64_t>{c.head_dim / 2}) {
    return BadConfig(kName, absl::StrCat("must have ", c.head_dim / 2, " elements, half of head_dim"));
  }
  c.rope.frequency_divisors.resize(c.head_dim / 2);
  RF_RETURN_IF_ERROR(
      formats::Dequantize(stored.info.encoding, stored.bytes, 0, absl::MakeSpan(c.rope.frequency_divisors)));
  for (float divisor : c.rope.frequency_divisors) {
    if (!(std::isfinite(divisor) && divisor > 0)) return BadConfig(kName, absl::StrCat("holds ", divisor));
  }
  return absl::OkStatus();
}

absl::Status ReadRope(const GgufFile& file, const Metadata& meta, ModelConfig& c) {
  RF_ASSIGN_OR_RETURN(c.rope.theta, meta.NumberOr("rope.freq_base", c.rope.theta));
  RF_ASSIGN_OR_RETURN(const absl::string_view kind, meta.TextOr("rope.scaling.type", "none"));
  if (kind != "none" && kind != "linear") return UnsupportedRope(kind);
  if (meta.Has("rope.scale_linear")) return UnsupportedRope("rope.scale_linear");
  if (kind == "linear") {
    c.rope.scaling = RopeScaling::kLinear;
    RF_ASSIGN_OR_RETURN(c.rope.factor, file.GetDouble(meta.Key("rope.scaling.factor")));
  }
  return ReadDivisors(file, c);
}

}  // namespace

absl::StatusOr<ModelConfig> DecoderFromGguf(absl::string_view arch, const GgufFile& file) {
  const Metadata meta(file, arch);
  ModelConfig config;
  config.arch = std::string(arch);
  for (absl::string_view key : {"expert_count", "attention.sliding_window"})
    RF_RETURN_IF_ERROR(meta.Refuse(key));
  RF_RETURN_IF_ERROR(ReadSizes(file, meta, config));
  RF_RETURN_IF_ERROR(ReadHeadDim(meta, config));
  RF_RETURN_IF_ERROR(ReadRope(file, meta, config));
  RF_ASSIGN_OR_RETURN(const double eps, file.GetDouble(meta.Key("attention.layer_norm_rms_epsilon")));
  config.rms_eps = static_cast<float>(eps);
  config.tied_head = !file.HasTensor("output.weight");
  RF_RETURN_IF_ERROR(CheckConfig(config));
  return config;
}

}  // namespace ridgefill::model
