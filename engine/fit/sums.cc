#include "engine/fit/sums.h"

#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/formats/json.h"
#include "engine/formats/safetensors.h"

namespace ridgefill::fit {
namespace {

using formats::Json;

constexpr char kFormat[] = "ridgefill-sums-1";

// Visits every vector of the sums with its name and shape; one list for adding, saving and loading.
template <typename SumsType, typename Visit>
absl::Status ForEach(const SumsKey& key, SumsType& sums, Visit visit) {
  const int64_t d = key.hidden, kv = 2 * int64_t{key.kv_width};
  RF_RETURN_IF_ERROR(visit("x", std::vector<int64_t>{d}, sums.x));
  RF_RETURN_IF_ERROR(visit("xx", std::vector<int64_t>{d, d}, sums.xx));
  for (size_t i = 0; i < sums.late.size(); ++i) {
    const std::string layer = absl::StrCat(".", key.split + 1 + static_cast<int>(i));
    RF_RETURN_IF_ERROR(visit("y" + layer, std::vector<int64_t>{kv}, sums.late[i].y));
    RF_RETURN_IF_ERROR(visit("yy" + layer, std::vector<int64_t>{kv}, sums.late[i].yy));
    RF_RETURN_IF_ERROR(visit("xy" + layer, std::vector<int64_t>{d, kv}, sums.late[i].xy));
  }
  return absl::OkStatus();
}

absl::Status AddVector(const std::vector<double>& more, std::vector<double>& to) {
  if (more.size() != to.size()) return absl::InternalError("sums of different shapes");
  for (size_t i = 0; i < to.size(); ++i) to[i] += more[i];
  return absl::OkStatus();
}

absl::Status Differ(absl::string_view reason, absl::string_view what, absl::string_view mine,
                    absl::string_view other) {
  return base::Error(absl::StatusCode::kFailedPrecondition, reason,
                     absl::StrCat("the sums are of another ", what, ": ", other, ", here it is ", mine));
}

Json HeaderJson(const SumsFile& file) {
  const SumsKey& key = file.key;
  return {{"model",
           {{"name", key.model.name},
            {"arch", key.model.arch},
            {"dimensions", key.model.dimensions},
            {"tokenizer_digest", key.model.tokenizer_digest},
            {"weights_digest", key.model.weights_digest}}},
          {"layers", key.layers},
          {"hidden", key.hidden},
          {"kv_width", key.kv_width},
          {"split", key.split},
          {"outlier_threshold", key.outlier_threshold},
          {"outlier_ratio", key.outlier_ratio},
          {"corpus", file.corpus},
          {"documents_digest", file.documents_digest},
          {"held_out_documents", file.held_out_documents},
          {"documents_done", file.documents_done},
          {"fit_rows", file.fit.rows},
          {"held_out_rows", file.held_out.rows}};
}

absl::StatusOr<std::string> Text(const Json& json, absl::string_view key) {
  RF_ASSIGN_OR_RETURN(const absl::string_view text, formats::GetString(json, key));
  return std::string(text);
}

absl::StatusOr<int> Dimension(const Json& json, absl::string_view key) {
  RF_ASSIGN_OR_RETURN(const int64_t value, formats::GetInt(json, key));
  if (value > 0 && value < (1 << 20)) return static_cast<int>(value);
  return base::Error(absl::StatusCode::kInvalidArgument, "SUMS_HEADER",
                     absl::StrCat(key, " must be in (0, 2^20), got ", value));
}

absl::Status ParseKey(const Json& json, SumsKey& key) {
  RF_ASSIGN_OR_RETURN(key.model.name, Text(json, "model/name"));
  RF_ASSIGN_OR_RETURN(key.model.arch, Text(json, "model/arch"));
  RF_ASSIGN_OR_RETURN(key.model.dimensions, Text(json, "model/dimensions"));
  RF_ASSIGN_OR_RETURN(key.model.tokenizer_digest, Text(json, "model/tokenizer_digest"));
  RF_ASSIGN_OR_RETURN(key.model.weights_digest, Text(json, "model/weights_digest"));
  RF_ASSIGN_OR_RETURN(key.layers, Dimension(json, "layers"));
  RF_ASSIGN_OR_RETURN(key.hidden, Dimension(json, "hidden"));
  RF_ASSIGN_OR_RETURN(key.kv_width, Dimension(json, "kv_width"));
  RF_ASSIGN_OR_RETURN(key.split, Dimension(json, "split"));
  RF_ASSIGN_OR_RETURN(const double threshold, formats::GetDouble(json, "outlier_threshold"));
  key.outlier_threshold = static_cast<float>(threshold);
  if (!json.contains("outlier_ratio")) {
    return base::Error(absl::StatusCode::kInvalidArgument, "SUMS_HEADER",
                       "the sums say nothing of their outlier_ratio: an older version wrote them; remove the "
                       "file and fit again");
  }
  RF_ASSIGN_OR_RETURN(const double ratio, formats::GetDouble(json, "outlier_ratio"));
  key.outlier_ratio = static_cast<float>(ratio);
  if (key.split < key.layers) return absl::OkStatus();
  return base::Error(absl::StatusCode::kInvalidArgument, "SUMS_HEADER",
                     absl::StrCat("split ", key.split, " of ", key.layers, " layers"));
}

absl::Status ParseHeader(const formats::SafetensorsFile& tensors, SumsFile& file) {
  const auto it = tensors.metadata().find(kFormat);
  if (it == tensors.metadata().end()) {
    return base::Error(absl::StatusCode::kInvalidArgument, "SUMS_HEADER",
                       absl::StrCat("no file of sums: its metadata has no ", kFormat));
  }
  RF_ASSIGN_OR_RETURN(const Json json, formats::ParseJson(it->second));
  RF_RETURN_IF_ERROR(ParseKey(json, file.key));
  RF_ASSIGN_OR_RETURN(file.corpus, Text(json, "corpus"));
  RF_ASSIGN_OR_RETURN(file.documents_digest, Text(json, "documents_digest"));
  RF_ASSIGN_OR_RETURN(file.held_out_documents, formats::GetInt(json, "held_out_documents"));
  RF_ASSIGN_OR_RETURN(file.documents_done, formats::GetInt(json, "documents_done"));
  RF_ASSIGN_OR_RETURN(file.fit.rows, formats::GetInt(json, "fit_rows"));
  RF_ASSIGN_OR_RETURN(file.held_out.rows, formats::GetInt(json, "held_out_rows"));
  return absl::OkStatus();
}

absl::Status ReadTensors(const formats::SafetensorsFile& tensors, const SumsKey& key,
                         const std::string& prefix, Sums& sums) {
  sums.late.resize(key.layers - key.split - 1);
  return ForEach(key, sums, [&](const std::string& name, const std::vector<int64_t>& dims, auto& out) {
    RF_ASSIGN_OR_RETURN(const formats::TensorBytes tensor, tensors.Tensor(prefix + name));
    if (tensor.info.dims != dims) {
      return base::Error(absl::StatusCode::kInvalidArgument, "SUMS_SHAPE",
                         absl::StrCat("tensor ", prefix, name, " has another shape than the header says"));
    }
    RF_ASSIGN_OR_RETURN(out, formats::ReadF64(tensor));
    return absl::OkStatus();
  });
}

absl::StatusOr<SumsFile> Read(const std::string& path) {
  RF_ASSIGN_OR_RETURN(const formats::SafetensorsFile tensors, formats::SafetensorsFile::Open(path));
  SumsFile file;
  RF_RETURN_IF_ERROR(ParseHeader(tensors, file));
  RF_RETURN_IF_ERROR(ReadTensors(tensors, file.key, "fit.", file.fit));
  RF_RETURN_IF_ERROR(ReadTensors(tensors, file.key, "held_out.", file.held_out));
  return file;
}

}  // namespace

Sums::Sums(const SumsKey& key) {
  const size_t d = key.hidden, kv = 2 * size_t(key.kv_width);
  x.resize(d);
  xx.resize(d * d);
  late.resize(key.layers - key.split - 1);
  for (LayerSums& layer : late) {
    layer.y.resize(kv);
    layer.yy.resize(kv);
    layer.xy.resize(d * kv);
  }
}

absl::Status Add(const Sums& more, Sums& to) {
  if (more.late.size() != to.late.size()) return absl::InternalError("sums of different shapes");
  RF_RETURN_IF_ERROR(AddVector(more.x, to.x));
  RF_RETURN_IF_ERROR(AddVector(more.xx, to.xx));
  for (size_t i = 0; i < to.late.size(); ++i) {
    RF_RETURN_IF_ERROR(AddVector(more.late[i].y, to.late[i].y));
    RF_RETURN_IF_ERROR(AddVector(more.late[i].yy, to.late[i].yy));
    RF_RETURN_IF_ERROR(AddVector(more.late[i].xy, to.late[i].xy));
  }
  to.rows += more.rows;
  return absl::OkStatus();
}

absl::Status CheckSameKey(const SumsKey& mine, const SumsKey& other) {
  const auto describe = [](const SumsKey& key) {
    return absl::StrCat(key.model.name, " (", key.model.arch, ", ", key.model.dimensions, ", tokenizer ",
                        key.model.tokenizer_digest.substr(0, 12), ", weights ",
                        key.model.weights_digest.substr(0, 12), ")");
  };
  const bool same_model =
      mine.model.arch == other.model.arch && mine.model.dimensions == other.model.dimensions &&
      mine.model.tokenizer_digest == other.model.tokenizer_digest &&
      mine.model.weights_digest == other.model.weights_digest && mine.layers == other.layers &&
      mine.hidden == other.hidden && mine.kv_width == other.kv_width;
  if (!same_model) return Differ("SUMS_OTHER_MODEL", "model", describe(mine), describe(other));
  if (mine.split != other.split) {
    return Differ("SUMS_OTHER_SPLIT", "split", absl::StrCat(mine.split), absl::StrCat(other.split));
  }
  if (mine.outlier_threshold != other.outlier_threshold) {
    return Differ("SUMS_OTHER_OUTLIERS", "outlier threshold", absl::StrCat(mine.outlier_threshold),
                  absl::StrCat(other.outlier_threshold));
  }
  if (mine.outlier_ratio != other.outlier_ratio) {
    return Differ("SUMS_OTHER_OUTLIER_RATIO", "outlier_ratio", absl::StrCat(mine.outlier_ratio),
                  absl::StrCat(other.outlier_ratio));
  }
  return absl::OkStatus();
}

absl::Status SaveSums(const std::string& path, const SumsFile& file) {
  std::vector<formats::TensorBytes> tensors;
  const auto collect = [&](const std::string& prefix, const Sums& sums) {
    return ForEach(
        file.key, sums, [&](const std::string& name, std::vector<int64_t> dims, const auto& values) {
          formats::TensorBytes tensor;
          tensor.info.name = prefix + name;
          tensor.info.encoding = formats::Encoding::kF64;
          tensor.info.dims = std::move(dims);
          tensor.bytes = {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
          tensor.info.byte_size = tensor.bytes.size();
          tensors.push_back(std::move(tensor));
          return absl::OkStatus();
        });
  };
  RF_RETURN_IF_ERROR(collect("fit.", file.fit));
  RF_RETURN_IF_ERROR(collect("held_out.", file.held_out));
  const std::string header = HeaderJson(file).dump(-1, ' ', false, Json::error_handler_t::replace);
  return formats::WriteSafetensors(path, tensors, {{kFormat, header}});
}

absl::StatusOr<SumsFile> LoadSums(const std::string& path) {
  absl::StatusOr<SumsFile> file = Read(path);
  if (!file.ok()) return base::WithContext(file.status(), path);
  return file;
}

}  // namespace ridgefill::fit
