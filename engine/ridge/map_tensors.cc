#include "engine/ridge/map_tensors.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"
#include "engine/ridge/map_codec.h"

namespace ridgefill::ridge {
namespace {

using formats::Encoding;
using formats::TensorBytes;

absl::Status WrongShape(const TensorBytes& tensor, absl::string_view expected) {
  return base::Error(
      absl::StatusCode::kInvalidArgument, "MAPS_SHAPE",
      absl::StrCat("tensor ", tensor.info.name, " is ", formats::EncodingName(tensor.info.encoding), " [",
                   absl::StrJoin(tensor.info.dims, ", "), "], must be ", expected));
}

absl::Status Missing(int layer, absl::string_view what) {
  return base::Error(absl::StatusCode::kNotFound, "MAPS_LAYER_MISSING",
                     absl::StrCat("no map for layer ", layer, ": ", what));
}

absl::Status CheckTensor(const TensorBytes& tensor, bool is_float, Encoding encoding,
                         const std::vector<int64_t>& dims) {
  const Encoding have = tensor.info.encoding;
  const bool encoded_right = is_float ? have == Encoding::kBF16 || have == Encoding::kF32 : have == encoding;
  if (encoded_right && tensor.info.dims == dims) return absl::OkStatus();
  const absl::string_view want = is_float ? "BF16 or F32" : formats::EncodingName(encoding);
  return WrongShape(tensor, absl::StrCat(want, " [", absl::StrJoin(dims, ", "), "]"));
}

absl::Status CheckFloat(const TensorBytes& tensor, const std::vector<int64_t>& dims) {
  return CheckTensor(tensor, true, Encoding::kBF16, dims);
}

// Widens all of a float tensor.
absl::StatusOr<std::vector<float>> Floats(const TensorBytes& tensor) {
  std::vector<float> out(formats::ElementCount(tensor.info));
  RF_RETURN_IF_ERROR(formats::Dequantize(tensor.info.encoding, tensor.bytes, 0, absl::MakeSpan(out)));
  return out;
}

const TensorBytes* Find(const TensorMap& all, const std::string& name) {
  const auto it = all.find(name);
  return it == all.end() ? nullptr : &it->second;
}

template <typename T>
std::vector<T> Raw(const TensorBytes& tensor) {
  std::vector<T> out(tensor.bytes.size() / sizeof(T));
  if (out.empty()) return out;
  std::memcpy(out.data(), tensor.bytes.data(), out.size() * sizeof(T));
  return out;
}

// [rows, columns + 1] -> weight [rows, columns] and bias [rows].
void SplitLastColumn(const std::vector<float>& joined, int64_t columns, LayerMap& map) {
  for (size_t at = 0; at < joined.size(); at += columns + 1) {
    map.weight.insert(map.weight.end(), joined.begin() + at, joined.begin() + at + columns);
    map.bias.push_back(joined[at + columns]);
  }
}

}  // namespace

std::string TensorPrefix(bool folded, int layer) { return absl::StrCat(folded ? "kv." : "proj.", layer); }

int64_t MapRows(const MapSetManifest& m) { return m.folded ? 2 * int64_t{m.kv_width} : m.hidden; }

absl::StatusOr<MapTensors> FindMapTensors(const MapSetManifest& m, int layer, const TensorMap& all) {
  const int64_t rows = MapRows(m) * m.mixture, columns = MapInputs(m);
  MapTensors found;
  if (!m.folded) {
    found.weight = Find(all, absl::StrCat("layer.", layer));
    if (found.weight != nullptr) {
      RF_RETURN_IF_ERROR(CheckFloat(*found.weight, {rows, columns + 1}));
      return found;
    }
  }
  const std::string prefix = TensorPrefix(m.folded, layer);
  found.bias = Find(all, prefix + ".bias");
  if (found.bias == nullptr) return Missing(layer, absl::StrCat("tensor ", prefix, ".bias is missing"));
  RF_RETURN_IF_ERROR(CheckFloat(*found.bias, {rows}));
  if (m.dtype == "bf16") {
    found.weight = Find(all, prefix + ".weight");
    if (found.weight == nullptr) return Missing(layer, absl::StrCat("tensor ", prefix, ".weight is missing"));
    RF_RETURN_IF_ERROR(CheckFloat(*found.weight, {rows, columns}));
    return found;
  }
  found.codes = Find(all, prefix + ".codes");
  found.scale = Find(all, prefix + ".scale");
  if (found.codes == nullptr || found.scale == nullptr) {
    return Missing(layer, absl::StrCat("tensors ", prefix, ".codes and .scale are needed for int8"));
  }
  RF_RETURN_IF_ERROR(CheckTensor(*found.codes, false, Encoding::kI8, {rows, columns}));
  RF_RETURN_IF_ERROR(CheckTensor(*found.scale, false, Encoding::kBF16, {rows, ScaleGroups(columns)}));
  return found;
}

absl::StatusOr<LayerMap> DecodeMap(const MapSetManifest& m, int layer, const MapTensors& tensors) {
  LayerMap map;
  map.layer = layer;
  if (tensors.bias == nullptr) {
    RF_ASSIGN_OR_RETURN(const std::vector<float> joined, Floats(*tensors.weight));
    SplitLastColumn(joined, m.hidden, map);
    return map;
  }
  RF_ASSIGN_OR_RETURN(map.bias, Floats(*tensors.bias));
  if (tensors.weight != nullptr) {
    RF_ASSIGN_OR_RETURN(map.weight, Floats(*tensors.weight));
    return map;
  }
  map.weight.resize(formats::ElementCount(tensors.codes->info));
  DecodeInt8(Raw<int8_t>(*tensors.codes), Raw<uint16_t>(*tensors.scale), MapInputs(m),
             absl::MakeSpan(map.weight));
  return map;
}

absl::StatusOr<Gate> DecodeGate(const MapSetManifest& m, const TensorMap& all) {
  if (m.mixture == 1) return Gate{};
  const TensorBytes *weight = Find(all, "gate.weight"), *bias = Find(all, "gate.bias");
  if (weight == nullptr || bias == nullptr) {
    return base::Error(absl::StatusCode::kNotFound, "MAPS_GATE_MISSING",
                       absl::StrCat("a mixture of ", m.mixture, " maps needs gate.weight and gate.bias"));
  }
  RF_RETURN_IF_ERROR(CheckFloat(*weight, {m.mixture, m.hidden}));
  RF_RETURN_IF_ERROR(CheckFloat(*bias, {m.mixture}));
  Gate gate;
  RF_ASSIGN_OR_RETURN(gate.weight, Floats(*weight));
  RF_ASSIGN_OR_RETURN(gate.bias, Floats(*bias));
  return gate;
}

}  // namespace ridgefill::ridge
