#include "engine/ridge/manifest.h"

#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/sha256.h"
#include "engine/base/status.h"
#include "engine/formats/json.h"
#include "engine/formats/quote.h"

namespace ridgefill::ridge {
namespace {

using formats::Json;
using formats::Quote;

constexpr int64_t kMaxDimension = 1 << 24;
constexpr int64_t kMaxMixture = 1024;

absl::Status Refuse(absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kInvalidArgument, reason, message);
}

absl::StatusOr<int> GetIntInOr(const Json& json, absl::string_view key, int64_t low, int64_t high,
                               int fallback) {
  return formats::HasJson(json, key) ? GetIntIn(json, key, low, high) : fallback;
}

absl::StatusOr<float> GetFloatOr(const Json& json, absl::string_view key, float fallback) {
  RF_ASSIGN_OR_RETURN(const double value, formats::GetDoubleOr(json, key, fallback));
  if (std::isfinite(value) && value >= 0 && value <= std::numeric_limits<float>::max()) {
    return static_cast<float>(value);
  }
  return Refuse("MAPS_MANIFEST", absl::StrCat(key, " must be a finite number of at least 0, got ", value));
}

absl::StatusOr<std::string> GetText(const Json& json, absl::string_view key) {
  RF_ASSIGN_OR_RETURN(const absl::string_view value, formats::GetString(json, key));
  return std::string(value);
}

absl::StatusOr<std::string> GetTextOr(const Json& json, absl::string_view key) {
  RF_ASSIGN_OR_RETURN(const absl::string_view value, formats::GetStringOr(json, key, ""));
  return std::string(value);
}

// A manifest must not reach outside its folder.
bool IsPlainFileName(absl::string_view name) {
  return !name.empty() && name[0] != '.' && name.find_first_of(absl::string_view("/\\\0", 3)) == name.npos;
}

bool IsSha256(absl::string_view text) {
  if (text.size() != 64) return false;
  for (char c : text) {
    if (!absl::ascii_isdigit(c) && !(c >= 'a' && c <= 'f')) return false;
  }
  return true;
}

absl::Status ParseFiles(const Json& json, ParsedManifest& out) {
  RF_ASSIGN_OR_RETURN(const Json* files, formats::GetObject(json, "files"));
  for (const auto& [name, digest] : files->items()) {
    if (!IsPlainFileName(name)) {
      return Refuse("MAPS_FILE_NAME", absl::StrCat("files: ", Quote(name),
                                                   " is not a plain file name of the map set's folder"));
    }
    if (!digest.is_string() || !IsSha256(digest.get_ref<const std::string&>())) {
      return Refuse("MAPS_MANIFEST",
                    absl::StrCat("files: ", Quote(name), " needs a sha256 of 64 lower-case hex digits"));
    }
    out.files[name] = digest.get<std::string>();
  }
  if (out.files.empty()) return Refuse("MAPS_MANIFEST", "files lists no file");
  return absl::OkStatus();
}

absl::Status ParseReport(const Json& json, MapSetManifest& m) {
  if (!formats::HasJson(json, "report")) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const Json* rows, formats::GetArray(json, "report"));
  for (const Json& row : *rows) {
    LayerReport r;
    RF_ASSIGN_OR_RETURN(r.layer, GetIntIn(row, "layer", 0, m.layers - 1));
    RF_ASSIGN_OR_RETURN(r.k_cosine, formats::GetDouble(row, "k_cosine"));
    RF_ASSIGN_OR_RETURN(r.v_error, formats::GetDouble(row, "v_error"));
    RF_ASSIGN_OR_RETURN(r.identity_k_cosine, formats::GetDouble(row, "identity_k_cosine"));
    RF_ASSIGN_OR_RETURN(r.identity_v_error, formats::GetDouble(row, "identity_v_error"));
    RF_ASSIGN_OR_RETURN(r.k_penalty, formats::GetDouble(row, "k_penalty"));
    RF_ASSIGN_OR_RETURN(r.v_penalty, formats::GetDouble(row, "v_penalty"));
    RF_ASSIGN_OR_RETURN(r.k_shrinkage, formats::GetDoubleOr(row, "k_shrinkage", 0));
    RF_ASSIGN_OR_RETURN(r.v_shrinkage, formats::GetDoubleOr(row, "v_shrinkage", 0));
    RF_ASSIGN_OR_RETURN(r.k_residual, formats::GetDoubleOr(row, "k_residual", 0));
    RF_ASSIGN_OR_RETURN(r.v_residual, formats::GetDoubleOr(row, "v_residual", 0));
    m.report.push_back(r);
  }
  return absl::OkStatus();
}

absl::Status ParseModel(const Json& json, MapSetManifest& m) {
  RF_ASSIGN_OR_RETURN(m.model.name, GetTextOr(json, "model/name"));
  RF_ASSIGN_OR_RETURN(m.model.arch, GetText(json, "model/arch"));
  RF_ASSIGN_OR_RETURN(m.model.dimensions, GetText(json, "model/dimensions"));
  RF_ASSIGN_OR_RETURN(m.model.tokenizer_digest, GetText(json, "model/tokenizer_digest"));
  RF_ASSIGN_OR_RETURN(m.model.weights_digest, GetText(json, "model/weights_digest"));
  RF_ASSIGN_OR_RETURN(m.layers, GetIntIn(json, "layers", 1, kMaxDimension));
  RF_ASSIGN_OR_RETURN(m.hidden, GetIntIn(json, "hidden", 1, kMaxDimension));
  RF_ASSIGN_OR_RETURN(m.kv_width, GetIntIn(json, "kv_width", 1, kMaxDimension));
  RF_ASSIGN_OR_RETURN(m.split, GetIntIn(json, "split", 1, m.layers - 1));
  return absl::OkStatus();
}

// What builds that know lower versions alone would fill wrongly.
int VersionOf(const MapSetManifest& m) {
  if (m.normalised) return 3;
  return m.mixture > 1 || m.previous_row ? 2 : 1;
}

absl::Status ParseUse(const Json& json, MapSetManifest& m) {
  RF_ASSIGN_OR_RETURN(m.folded, formats::GetBool(json, "folded"));
  RF_ASSIGN_OR_RETURN(m.dtype, GetText(json, "dtype"));
  if (m.dtype != "bf16" && m.dtype != "int8") {
    return Refuse("MAPS_MANIFEST", absl::StrCat("dtype must be bf16 or int8, got ", Quote(m.dtype)));
  }
  RF_ASSIGN_OR_RETURN(m.mixture, GetIntInOr(json, "mixture", 1, kMaxMixture, 1));
  if (formats::HasJson(json, "previous_row")) {
    RF_ASSIGN_OR_RETURN(m.previous_row, formats::GetBool(json, "previous_row"));
  }
  if (formats::HasJson(json, "normalised")) {
    RF_ASSIGN_OR_RETURN(m.normalised, formats::GetBool(json, "normalised"));
  }
  if (!m.folded && VersionOf(m) > 1) {
    return Refuse("MAPS_MANIFEST",
                  "only folded maps may be a mixture, take the previous row or normalise their inputs");
  }
  RF_ASSIGN_OR_RETURN(m.tail_default, GetIntInOr(json, "tail/default", 1, kMaxDimension, m.tail_default));
  RF_ASSIGN_OR_RETURN(m.tail_minimum, GetIntInOr(json, "tail/minimum", 1, kMaxDimension, m.tail_minimum));
  RF_ASSIGN_OR_RETURN(m.min_bulk, GetIntInOr(json, "min_bulk", 0, kMaxDimension, m.min_bulk));
  RF_ASSIGN_OR_RETURN(m.outlier_ratio, GetFloatOr(json, "outlier/ratio", m.outlier_ratio));
  RF_ASSIGN_OR_RETURN(m.outlier_threshold, GetFloatOr(json, "outlier/threshold", 0));
  RF_ASSIGN_OR_RETURN(m.fit_rows, formats::GetIntOr(json, "fit/rows", 0));
  RF_ASSIGN_OR_RETURN(m.fit_corpus, GetTextOr(json, "fit/corpus"));
  if (formats::HasJson(json, "fit/weighted")) {
    RF_ASSIGN_OR_RETURN(m.fit_weighted, formats::GetBool(json, "fit/weighted"));
  }
  return ParseReport(json, m);
}

// What published projector folders say; no tokenizer digest of ours, no outlier rule.
absl::Status ParsePublished(const Json& json, ParsedManifest& out) {
  out.published = true;
  MapSetManifest& m = out.manifest;
  m.folded = false;
  RF_ASSIGN_OR_RETURN(m.split, GetIntInOr(json, "split", 1, kMaxDimension, -1));
  RF_ASSIGN_OR_RETURN(m.model.name, GetTextOr(json, "model/name"));
  RF_ASSIGN_OR_RETURN(m.model.arch, GetTextOr(json, "model/arch_id"));
  RF_ASSIGN_OR_RETURN(const std::string dtype, GetTextOr(json, "projector/dtype"));
  m.dtype = dtype == "i8" ? "int8" : "bf16";
  RF_ASSIGN_OR_RETURN(m.tail_default, GetIntInOr(json, "tail/default", 1, kMaxDimension, m.tail_default));
  RF_ASSIGN_OR_RETURN(m.tail_minimum, GetIntInOr(json, "tail/min", 1, kMaxDimension, m.tail_minimum));
  RF_ASSIGN_OR_RETURN(m.outlier_threshold, GetFloatOr(json, "outlier/threshold", 0));
  return absl::OkStatus();
}

Json ReportJson(const LayerReport& r) {
  return {{"layer", r.layer},
          {"k_cosine", r.k_cosine},
          {"v_error", r.v_error},
          {"identity_k_cosine", r.identity_k_cosine},
          {"identity_v_error", r.identity_v_error},
          {"k_penalty", r.k_penalty},
          {"v_penalty", r.v_penalty},
          {"k_shrinkage", r.k_shrinkage},
          {"v_shrinkage", r.v_shrinkage},
          {"k_residual", r.k_residual},
          {"v_residual", r.v_residual}};
}

}  // namespace

absl::StatusOr<int> GetIntIn(const Json& json, absl::string_view key, int64_t low, int64_t high) {
  RF_ASSIGN_OR_RETURN(const int64_t value, formats::GetInt(json, key));
  if (value >= low && value <= high) return static_cast<int>(value);
  return Refuse("MAPS_MANIFEST", absl::StrCat(key, " must be in [", low, ", ", high, "], got ", value));
}

absl::StatusOr<ParsedManifest> ParseManifest(absl::string_view text) {
  RF_ASSIGN_OR_RETURN(const Json json, formats::ParseJson(text));
  ParsedManifest out;
  out.manifest.digest = base::Sha256Hex(text);
  const bool published = !formats::HasJson(json, "format_version") && formats::HasJson(json, "format");
  RF_ASSIGN_OR_RETURN(const int64_t version, formats::GetInt(json, published ? "format" : "format_version"));
  const int64_t newest = published ? 1 : kFormatVersion;
  if (version < 1 || version > newest) {
    return Refuse("MAPS_FORMAT_VERSION",
                  absl::StrCat(published ? "published format " : "format version ", version,
                               " is not supported; this build reads ", newest > 1 ? "1 to " : "", newest));
  }
  RF_RETURN_IF_ERROR(ParseFiles(json, out));
  if (published) {
    RF_RETURN_IF_ERROR(ParsePublished(json, out));
    return out;
  }
  RF_RETURN_IF_ERROR(ParseModel(json, out.manifest));
  RF_RETURN_IF_ERROR(ParseUse(json, out.manifest));
  // Sets of version 2 with it were written before version 3 was, and mean the same.
  if (out.manifest.normalised && version < 2) {
    return Refuse("MAPS_FORMAT_VERSION", absl::StrCat("format version ", version,
                                                      " knows no normalised inputs; it takes version 3"));
  }
  return out;
}

std::string ManifestText(const MapSetManifest& m, const std::map<std::string, std::string>& files) {
  Json json = {{"format_version", VersionOf(m)},
               {"model",
                {{"name", m.model.name},
                 {"arch", m.model.arch},
                 {"dimensions", m.model.dimensions},
                 {"tokenizer_digest", m.model.tokenizer_digest},
                 {"weights_digest", m.model.weights_digest}}},
               {"layers", m.layers},
               {"hidden", m.hidden},
               {"kv_width", m.kv_width},
               {"split", m.split},
               {"folded", m.folded},
               {"dtype", m.dtype},
               {"tail", {{"default", m.tail_default}, {"minimum", m.tail_minimum}}},
               {"min_bulk", m.min_bulk},
               {"outlier", {{"ratio", m.outlier_ratio}, {"threshold", m.outlier_threshold}}},
               {"fit", {{"rows", m.fit_rows}, {"corpus", m.fit_corpus}, {"weighted", m.fit_weighted}}},
               {"files", files}};
  if (m.mixture > 1) json["mixture"] = m.mixture;
  if (m.previous_row) json["previous_row"] = true;
  if (m.normalised) json["normalised"] = true;
  for (const LayerReport& r : m.report) json["report"].push_back(ReportJson(r));
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ridgefill::ridge
