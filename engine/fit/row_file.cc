#include "engine/fit/row_file.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/float16.h"
#include "engine/base/status.h"

namespace ridgefill::fit {
namespace {

using formats::Encoding;
using formats::Json;

constexpr char kFormat[] = "ridgefill-rows-1";
constexpr int64_t kMaxDimension = 1 << 20;

absl::Status Refuse(absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kInvalidArgument, reason, message);
}

std::string HiddenName(int split) { return absl::StrCat("hidden.", split); }
std::string KvName(int layer) { return absl::StrCat("kv.", layer); }
std::string MassName(int layer) { return absl::StrCat("mass.", layer); }

Json HeaderJson(const RowsKey& key, const DocumentRows& rows) {
  Json out = {{"model",
               {{"name", key.model.name},
                {"arch", key.model.arch},
                {"dimensions", key.model.dimensions},
                {"tokenizer_digest", key.model.tokenizer_digest},
                {"weights_digest", key.model.weights_digest}}},
              {"layers", key.layers},
              {"hidden", key.hidden},
              {"kv_width", key.kv_width},
              {"heads_kv", key.heads_kv},
              {"splits", key.splits},
              {"mass_distance", key.mass_distance},
              {"corpus", rows.corpus},
              {"digest", rows.digest},
              {"held_out", rows.held_out},
              {"tokens", rows.tokens}};
  if (!rows.source.digest.empty()) {
    out["source"] = {
        {"file", rows.source.file}, {"digest", rows.source.digest}, {"begin", rows.source.begin}};
  }
  return out;
}

// OK when `is_fine` holds for every value; `columns` of them make a row.
template <typename T, typename IsFine>
absl::Status CheckEach(const std::string& name, absl::Span<const T> values, int64_t columns, IsFine is_fine) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (is_fine(values[i])) continue;
    return Refuse("ROWS_VALUES",
                  absl::StrCat("tensor ", name, " has a value in row ", i / columns, ", column ", i % columns,
                               " that no model gives: all must be finite, of mass also at least 0"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Text(const Json& json, absl::string_view key) {
  RF_ASSIGN_OR_RETURN(const absl::string_view text, formats::GetString(json, key));
  return std::string(text);
}

absl::StatusOr<int> Dimension(const Json& json, absl::string_view key) {
  RF_ASSIGN_OR_RETURN(const int64_t value, formats::GetInt(json, key));
  if (value > 0 && value < kMaxDimension) return static_cast<int>(value);
  return Refuse("ROWS_HEADER", absl::StrCat(key, " must be in (0, 2^20), got ", value));
}

absl::Status ParseModel(const Json& json, base::ModelIdentity& model) {
  RF_ASSIGN_OR_RETURN(model.name, Text(json, "model/name"));
  RF_ASSIGN_OR_RETURN(model.arch, Text(json, "model/arch"));
  RF_ASSIGN_OR_RETURN(model.dimensions, Text(json, "model/dimensions"));
  RF_ASSIGN_OR_RETURN(model.tokenizer_digest, Text(json, "model/tokenizer_digest"));
  RF_ASSIGN_OR_RETURN(model.weights_digest, Text(json, "model/weights_digest"));
  return absl::OkStatus();
}

absl::Status ParseKey(const Json& json, RowsKey& key) {
  RF_RETURN_IF_ERROR(ParseModel(json, key.model));
  RF_ASSIGN_OR_RETURN(key.layers, Dimension(json, "layers"));
  RF_ASSIGN_OR_RETURN(key.hidden, Dimension(json, "hidden"));
  RF_ASSIGN_OR_RETURN(key.kv_width, Dimension(json, "kv_width"));
  RF_ASSIGN_OR_RETURN(key.heads_kv, Dimension(json, "heads_kv"));
  RF_ASSIGN_OR_RETURN(key.mass_distance, Dimension(json, "mass_distance"));
  RF_ASSIGN_OR_RETURN(const Json* splits, formats::GetArray(json, "splits"));
  for (const Json& split : *splits) {
    const bool in_order = split.is_number_integer() && split.get<int64_t>() < key.layers &&
                          split.get<int64_t>() > (key.splits.empty() ? 0 : key.splits.back());
    if (!in_order) return Refuse("ROWS_HEADER", "splits must ascend between 0 and the layers");
    key.splits.push_back(split.get<int>());
  }
  return key.splits.empty() ? Refuse("ROWS_HEADER", "splits names none") : absl::OkStatus();
}

absl::Status Differ(absl::string_view reason, absl::string_view what, absl::string_view mine,
                    absl::string_view other) {
  return base::Error(absl::StatusCode::kFailedPrecondition, reason,
                     absl::StrCat("the rows are of another ", what, ": ", other, ", here it is ", mine));
}

}  // namespace

absl::Status SaveRows(const std::string& path, const RowsKey& key, const DocumentRows& rows) {
  std::vector<formats::TensorBytes> tensors;
  const auto add = [&](std::string name, Encoding encoding, std::vector<int64_t> dims, const auto& values) {
    formats::TensorBytes tensor;
    tensor.info.name = std::move(name);
    tensor.info.encoding = encoding;
    tensor.info.dims = std::move(dims);
    tensor.bytes = {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])};
    tensor.info.byte_size = tensor.bytes.size();
    tensors.push_back(std::move(tensor));
  };
  for (const auto& [split, values] : rows.hidden) {
    add(HiddenName(split), Encoding::kF32, {rows.tokens, key.hidden}, values);
  }
  for (const auto& [layer, values] : rows.mass) {
    add(MassName(layer), Encoding::kF32, {key.heads_kv, rows.tokens}, values);
  }
  for (const auto& [layer, values] : rows.kv) {
    add(KvName(layer), Encoding::kBF16, {rows.tokens, 2 * int64_t{key.kv_width}}, values);
  }
  const std::string header = HeaderJson(key, rows).dump(-1, ' ', false, Json::error_handler_t::replace);
  return formats::WriteSafetensors(path, tensors, {{kFormat, header}});
}

absl::StatusOr<std::unique_ptr<RowFile>> RowFile::Open(const std::string& path) {
  auto opened = formats::SafetensorsFile::Open(path);
  if (!opened.ok()) return base::WithContext(opened.status(), path);
  std::unique_ptr<RowFile> file(new RowFile(*std::move(opened)));
  file->path_ = path;
  absl::Status status = file->ParseHeader();
  if (status.ok()) status = file->FindTensors();
  if (status.ok()) status = file->CheckValues();
  if (!status.ok()) return base::WithContext(status, path);
  return file;
}

absl::Status RowFile::ParseHeader() {
  const auto it = file_.metadata().find(kFormat);
  if (it == file_.metadata().end()) {
    return Refuse("ROWS_HEADER", absl::StrCat("no file of rows: its metadata has no ", kFormat));
  }
  RF_ASSIGN_OR_RETURN(const Json json, formats::ParseJson(it->second));
  RF_RETURN_IF_ERROR(ParseKey(json, key_));
  RF_ASSIGN_OR_RETURN(corpus_, Text(json, "corpus"));
  RF_ASSIGN_OR_RETURN(digest_, Text(json, "digest"));
  RF_ASSIGN_OR_RETURN(held_out_, formats::GetBool(json, "held_out"));
  RF_ASSIGN_OR_RETURN(tokens_, formats::GetInt(json, "tokens"));
  if (tokens_ < 2) {
    return Refuse("ROWS_HEADER",
                  absl::StrCat("tokens must be at least 2: row 0 is never fitted, got ", tokens_));
  }
  return ParseSource(json);
}

absl::Status RowFile::ParseSource(const Json& json) {
  constexpr int64_t kMost = int64_t{1} << 48;
  if (!json.contains("source")) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(source_.file, Text(json, "source/file"));
  RF_ASSIGN_OR_RETURN(source_.digest, Text(json, "source/digest"));
  RF_ASSIGN_OR_RETURN(source_.begin, formats::GetInt(json, "source/begin"));
  if (source_.begin >= 0 && source_.begin < kMost) return absl::OkStatus();
  return Refuse("ROWS_HEADER", absl::StrCat("source/begin must be in [0, 2^48), got ", source_.begin));
}

absl::Status RowFile::FindTensors() {
  for (int split : key_.splits) {
    RF_RETURN_IF_ERROR(Find(HiddenName(split), Encoding::kF32, {tokens_, key_.hidden}, hidden_[split]));
  }
  for (int layer = key_.splits.front() + 1; layer < key_.layers; ++layer) {
    RF_RETURN_IF_ERROR(Find(MassName(layer), Encoding::kF32, {key_.heads_kv, tokens_}, mass_[layer]));
    RF_RETURN_IF_ERROR(
        Find(KvName(layer), Encoding::kBF16, {tokens_, 2 * int64_t{key_.kv_width}}, kv_[layer]));
  }
  return absl::OkStatus();
}

absl::Status RowFile::CheckValues() const {
  const auto is_finite = [](float value) { return std::isfinite(value); };
  for (const auto& [split, values] : hidden_) {
    RF_RETURN_IF_ERROR(CheckEach(HiddenName(split), values, key_.hidden, is_finite));
  }
  for (const auto& [layer, values] : mass_) {
    RF_RETURN_IF_ERROR(CheckEach(MassName(layer), values, tokens_,
                                 [](float value) { return std::isfinite(value) && value >= 0; }));
  }
  for (const auto& [layer, values] : kv_) {
    RF_RETURN_IF_ERROR(CheckEach(KvName(layer), values, 2 * int64_t{key_.kv_width},
                                 [&](uint16_t bits) { return is_finite(base::BF16ToF32(bits)); }));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status RowFile::Find(const std::string& name, Encoding encoding, const std::vector<int64_t>& dims,
                           absl::Span<const T>& out) const {
  RF_ASSIGN_OR_RETURN(const formats::TensorBytes tensor, file_.Tensor(name));
  const bool aligned = reinterpret_cast<uintptr_t>(tensor.bytes.data()) % alignof(T) == 0;
  if (tensor.info.encoding != encoding || tensor.info.dims != dims || !aligned) {
    return Refuse("ROWS_SHAPE",
                  absl::StrCat("tensor ", name, " must be ", formats::EncodingName(encoding), " [",
                               absl::StrJoin(dims, ", "), "], at a multiple of ", alignof(T), " bytes"));
  }
  out = {reinterpret_cast<const T*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(T)};
  return absl::OkStatus();
}

absl::Status CheckServes(const RowsKey& mine, const RowsKey& other) {
  const auto describe = [](const RowsKey& key) {
    return absl::StrCat(key.model.name, " (", key.model.arch, ", ", key.model.dimensions, ", tokenizer ",
                        key.model.tokenizer_digest.substr(0, 12), ", weights ",
                        key.model.weights_digest.substr(0, 12), ")");
  };
  const bool same_model =
      mine.model.arch == other.model.arch && mine.model.dimensions == other.model.dimensions &&
      mine.model.tokenizer_digest == other.model.tokenizer_digest &&
      mine.model.weights_digest == other.model.weights_digest && mine.layers == other.layers &&
      mine.hidden == other.hidden && mine.kv_width == other.kv_width && mine.heads_kv == other.heads_kv;
  if (!same_model) return Differ("ROWS_OTHER_MODEL", "model", describe(mine), describe(other));
  if (!std::includes(other.splits.begin(), other.splits.end(), mine.splits.begin(), mine.splits.end())) {
    return Differ("ROWS_OTHER_SPLITS", "split", absl::StrJoin(mine.splits, ","),
                  absl::StrJoin(other.splits, ","));
  }
  if (mine.mass_distance != other.mass_distance) {
    return Differ("ROWS_OTHER_DISTANCE", "mass_distance", absl::StrCat(mine.mass_distance),
                  absl::StrCat(other.mass_distance));
  }
  return absl::OkStatus();
}

}  // namespace ridgefill::fit
