#include "engine/ridge/sweep.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/base/status.h"
#include "engine/formats/json.h"
#include "engine/ridge/manifest.h"

namespace ridgefill::ridge {
namespace {

using formats::Json;

constexpr int64_t kMost = 1 << 24;  // of layers, tokens and counts

absl::Status Refuse(absl::string_view message) {
  return base::Error(absl::StatusCode::kInvalidArgument, "MAPS_MANIFEST", absl::StrCat("sweep: ", message));
}

absl::StatusOr<SweepFigure> ParseFigure(const Json& json) {
  SweepFigure out;
  RF_ASSIGN_OR_RETURN(const absl::string_view measure, formats::GetString(json, "measure"));
  RF_ASSIGN_OR_RETURN(const absl::string_view cell, formats::GetString(json, "cell"));
  out.measure = std::string(measure);
  out.cell = std::string(cell);
  RF_ASSIGN_OR_RETURN(out.length, GetIntIn(json, "length", 1, kMost));
  RF_ASSIGN_OR_RETURN(out.tail, GetIntIn(json, "tail", 1, kMost));
  RF_ASSIGN_OR_RETURN(out.count, GetIntIn(json, "count", 0, kMost));
  RF_ASSIGN_OR_RETURN(out.mean, formats::GetDouble(json, "mean"));
  RF_ASSIGN_OR_RETURN(out.low, formats::GetDouble(json, "low"));
  RF_ASSIGN_OR_RETURN(out.high, formats::GetDouble(json, "high"));
  if (std::isfinite(out.mean) && std::isfinite(out.low) && std::isfinite(out.high) && out.low <= out.high) {
    return out;
  }
  return Refuse(
      absl::StrCat("no interval of finite numbers: ", out.mean, " [", out.low, ", ", out.high, "]"));
}

absl::StatusOr<SweptSplit> ParseSplit(const Json& json, int64_t layers) {
  SweptSplit out;
  RF_ASSIGN_OR_RETURN(out.split, GetIntIn(json, "split", 1, layers - 1));
  RF_ASSIGN_OR_RETURN(out.within, formats::GetBool(json, "within"));
  RF_ASSIGN_OR_RETURN(out.chosen, formats::GetBool(json, "chosen"));
  if (out.chosen && !out.within) {
    return Refuse(absl::StrCat("split ", out.split, " is chosen, but not within the bounds"));
  }
  RF_ASSIGN_OR_RETURN(const Json* figures, formats::GetArray(json, "figures"));
  for (const Json& figure : *figures) {
    RF_ASSIGN_OR_RETURN(SweepFigure parsed, ParseFigure(figure));
    out.figures.push_back(std::move(parsed));
  }
  return out;
}

Json ToJson(const SweptSplit& swept) {
  Json figures = Json::array();
  for (const SweepFigure& f : swept.figures) {
    figures.push_back({{"measure", f.measure},
                       {"cell", f.cell},
                       {"length", f.length},
                       {"tail", f.tail},
                       {"count", f.count},
                       {"mean", f.mean},
                       {"low", f.low},
                       {"high", f.high}});
  }
  return {{"split", swept.split}, {"within", swept.within}, {"chosen", swept.chosen}, {"figures", figures}};
}

std::string ManifestPath(const std::string& folder) { return absl::StrCat(folder, "/", kManifestName); }

}  // namespace

absl::StatusOr<std::vector<SweptSplit>> ParseSweep(absl::string_view manifest) {
  RF_ASSIGN_OR_RETURN(const Json json, formats::ParseJson(manifest));
  std::vector<SweptSplit> out;
  if (!formats::HasJson(json, "sweep")) return out;
  RF_ASSIGN_OR_RETURN(const int layers, GetIntIn(json, "layers", 1, kMost));
  RF_ASSIGN_OR_RETURN(const Json* splits, formats::GetArray(json, "sweep"));
  bool chosen = false;
  for (const Json& of_split : *splits) {
    RF_ASSIGN_OR_RETURN(SweptSplit swept, ParseSplit(of_split, layers));
    if (!out.empty() && swept.split <= out.back().split) {
      return Refuse(absl::StrCat("splits must ascend, ", swept.split, " comes after ", out.back().split));
    }
    if (swept.chosen && chosen)
      return Refuse(absl::StrCat("split ", swept.split, " is chosen beside another"));
    chosen = chosen || swept.chosen;
    out.push_back(std::move(swept));
  }
  return out;
}

absl::StatusOr<std::vector<SweptSplit>> ReadSweep(const std::string& folder) {
  RF_ASSIGN_OR_RETURN(const std::string text, base::ReadFile(ManifestPath(folder)));
  auto sweep = ParseSweep(text);
  if (!sweep.ok()) return base::WithContext(sweep.status(), ManifestPath(folder));
  return sweep;
}

absl::Status StoreSweep(const std::string& folder, const std::vector<SweptSplit>& sweep) {
  const std::string path = ManifestPath(folder);
  RF_ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path));
  auto json = formats::ParseJson(text);
  if (!json.ok()) return base::WithContext(json.status(), path);
  Json list = Json::array();
  for (const SweptSplit& swept : sweep) list.push_back(ToJson(swept));
  (*json)["sweep"] = std::move(list);
  return base::WriteFileAtomically(path, json->dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace ridgefill::ridge
