#include "engine/model/loader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/float16.h"
#include "engine/base/status.h"

namespace ridgefill::model {
namespace {

using kernels::DType;
using kernels::PackedLinear;
using kernels::Tensor;

// Rows [begin, begin + count) of several tensors stacked. Sources checked every encoding when they opened.
void ReadStacked(absl::Span<const WeightTensor> parts, int64_t begin, int64_t count, float* out) {
  for (const WeightTensor& part : parts) {
    const int64_t rows = part.dims[0], take = std::min(count, rows - begin);
    if (take > 0) {
      RF_CHECK(part.ReadRows(begin, take, out).ok());
      out += take * part.row_elements();
      count -= take;
    }
    begin = std::max<int64_t>(begin - rows, 0);
  }
  RF_CHECK(count == 0);
}

class Loader {
 public:
  Loader(const WeightSource& source, kernels::Backend& backend, const LoadOptions& options)
      : source_(source), backend_(backend), options_(options), stream_(backend.NewStream()) {}

  absl::StatusOr<ModelWeights> Load();

 private:
  absl::StatusOr<std::vector<WeightTensor>> FindAll(absl::string_view prefix,
                                                    absl::Span<const absl::string_view> names,
                                                    absl::string_view suffix) const;
  // The linears `names` stacked: "self_attn.k_proj", "self_attn.v_proj".
  absl::StatusOr<std::unique_ptr<PackedLinear>> Linear(absl::string_view prefix,
                                                       absl::Span<const absl::string_view> names, bool bias);
  absl::StatusOr<Tensor> Vector(absl::string_view name);
  absl::StatusOr<Tensor> Table(absl::string_view name);
  absl::StatusOr<LayerWeights> Layer(int layer);
  absl::Status Head(ModelWeights& weights);

  const WeightSource& source_;
  kernels::Backend& backend_;
  const LoadOptions& options_;
  std::unique_ptr<kernels::Stream> stream_;
  int64_t bytes_ = 0;
};

absl::StatusOr<std::vector<WeightTensor>> Loader::FindAll(absl::string_view prefix,
                                                          absl::Span<const absl::string_view> names,
                                                          absl::string_view suffix) const {
  std::vector<WeightTensor> parts;
  for (absl::string_view name : names) {
    RF_ASSIGN_OR_RETURN(WeightTensor part, source_.Find(absl::StrCat(prefix, name, suffix)));
    parts.push_back(std::move(part));
  }
  return parts;
}

absl::StatusOr<std::unique_ptr<PackedLinear>> Loader::Linear(absl::string_view prefix,
                                                             absl::Span<const absl::string_view> names,
                                                             bool bias) {
  RF_ASSIGN_OR_RETURN(const std::vector<WeightTensor> parts, FindAll(prefix, names, ".weight"));
  kernels::LinearSource linear;
  linear.in_features = parts[0].dims[1];
  for (const WeightTensor& part : parts) linear.out_features += part.dims[0];
  linear.read_rows = [&parts](int64_t begin, int64_t count, float* out) {
    ReadStacked(parts, begin, count, out);
  };
  linear.for_prompt = options_.for_prompt;
  linear.for_decode = options_.for_decode;
  std::vector<float> bias_values;
  if (bias) {
    RF_ASSIGN_OR_RETURN(const std::vector<WeightTensor> biases, FindAll(prefix, names, ".bias"));
    bias_values.resize(linear.out_features);
    ReadStacked(biases, 0, linear.out_features, bias_values.data());
    linear.bias = bias_values;
  }
  RF_ASSIGN_OR_RETURN(std::unique_ptr<PackedLinear> packed, backend_.PackLinear(linear));
  bytes_ += packed->bytes();
  return packed;
}

absl::StatusOr<Tensor> Loader::Vector(absl::string_view name) {
  RF_ASSIGN_OR_RETURN(const WeightTensor stored, source_.Find(name));
  std::vector<float> values(stored.dims[0]);
  RF_RETURN_IF_ERROR(stored.ReadRows(0, stored.dims[0], values.data()));
  RF_ASSIGN_OR_RETURN(Tensor tensor, backend_.Allocate(DType::kF32, {stored.dims[0]}));
  const auto bytes =
      absl::MakeConstSpan(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  RF_RETURN_IF_ERROR(backend_.CopyFromHost(*stream_, bytes, tensor.view()));
  RF_RETURN_IF_ERROR(backend_.Synchronize(*stream_));
  bytes_ += tensor.view().bytes();
  return tensor;
}

// Where activations are bf16 the table is too: a row is the first residual, and rounding it once costs as
// much as rounding one activation.
absl::StatusOr<Tensor> Loader::Table(absl::string_view name) {
  constexpr int64_t kChunkRows = 1024;
  RF_ASSIGN_OR_RETURN(const WeightTensor stored, source_.Find(name));
  const int64_t rows = stored.dims[0], columns = stored.dims[1];
  const bool wide = backend_.capabilities().activation_dtype == DType::kF32;
  RF_ASSIGN_OR_RETURN(Tensor table, backend_.Allocate(wide ? DType::kF32 : DType::kBF16, {rows, columns}));
  std::vector<float> values(kChunkRows * columns);
  std::vector<uint16_t> narrow(wide ? 0 : values.size());
  for (int64_t begin = 0; begin < rows; begin += kChunkRows) {
    const int64_t count = std::min(kChunkRows, rows - begin), elements = count * columns;
    RF_RETURN_IF_ERROR(stored.ReadRows(begin, count, values.data()));
    if (!wide) std::transform(values.begin(), values.begin() + elements, narrow.begin(), base::F32ToBF16);
    const void* from = wide ? static_cast<const void*>(values.data()) : narrow.data();
    const kernels::TensorView to = table.view().Rows(begin, count);
    RF_RETURN_IF_ERROR(backend_.CopyFromHost(
        *stream_, absl::MakeConstSpan(static_cast<const char*>(from), static_cast<size_t>(to.bytes())), to));
    RF_RETURN_IF_ERROR(backend_.Synchronize(*stream_));
  }
  bytes_ += table.view().bytes();
  return table;
}

absl::StatusOr<LayerWeights> Loader::Layer(int layer) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const bool bias = source_.config().qkv_bias;
  LayerWeights w;
  RF_ASSIGN_OR_RETURN(w.input_norm, Vector(absl::StrCat(prefix, "input_layernorm.weight")));
  RF_ASSIGN_OR_RETURN(w.q, Linear(prefix, {"self_attn.q_proj"}, bias));
  RF_ASSIGN_OR_RETURN(w.kv, Linear(prefix, {"self_attn.k_proj", "self_attn.v_proj"}, bias));
  RF_ASSIGN_OR_RETURN(w.attn_out, Linear(prefix, {"self_attn.o_proj"}, /*bias=*/false));
  RF_ASSIGN_OR_RETURN(w.ffn_norm, Vector(absl::StrCat(prefix, "post_attention_layernorm.weight")));
  RF_ASSIGN_OR_RETURN(w.gate_up, Linear(prefix, {"mlp.gate_proj", "mlp.up_proj"}, /*bias=*/false));
  RF_ASSIGN_OR_RETURN(w.ffn_out, Linear(prefix, {"mlp.down_proj"}, /*bias=*/false));
  return w;
}

absl::Status Loader::Head(ModelWeights& weights) {
  RF_ASSIGN_OR_RETURN(weights.final_norm, Vector("model.norm.weight"));
  const absl::string_view name = source_.config().tied_head ? "model.embed_tokens" : "lm_head";
  RF_ASSIGN_OR_RETURN(weights.head, Linear("", {name}, /*bias=*/false));
  return absl::OkStatus();
}

absl::StatusOr<ModelWeights> Loader::Load() {
  const bool whole = options_.layer_end < 0;
  const int layers = whole ? source_.config().layers : options_.layer_end;
  const int steps = layers + (whole ? 2 : 1);
  int done = 0;
  const auto report = [&] {
    if (options_.progress) options_.progress(static_cast<double>(++done) / steps);
  };
  ModelWeights weights;
  RF_ASSIGN_OR_RETURN(weights.embedding, Table("model.embed_tokens.weight"));
  report();
  for (int layer = 0; layer < layers; ++layer) {
    RF_ASSIGN_OR_RETURN(LayerWeights loaded, Layer(layer));
    weights.layers.push_back(std::move(loaded));
    report();
  }
  if (whole) {
    RF_RETURN_IF_ERROR(Head(weights));
    report();
  }
  weights.bytes = bytes_;
  return weights;
}

}  // namespace

absl::StatusOr<ModelWeights> LoadWeights(const WeightSource& source, kernels::Backend& backend,
                                         const LoadOptions& options) {
  return Loader(source, backend, options).Load();
}

}  // namespace ridgefill::model
