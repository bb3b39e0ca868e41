#include "engine/ridge/map_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/file.h"
#include "engine/base/sha256.h"
#include "engine/base/status.h"
#include "engine/formats/quote.h"
#include "engine/formats/safetensors.h"
#include "engine/ridge/manifest.h"
#include "engine/ridge/map_tensors.h"

namespace ridgefill::ridge {
namespace {

absl::Status Refuse(absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kInvalidArgument, reason, message);
}

// "layer.24" -> 24; "proj.24.bias" -> 24; -1 for any other name.
int LayerOfTensor(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "layer.") && !absl::ConsumePrefix(&name, "proj.")) return -1;
  int layer = -1;
  return absl::SimpleAtoi(name.substr(0, name.find('.')), &layer) && layer >= 0 ? layer : -1;
}

class FileMapSet : public MapSet {
 public:
  explicit FileMapSet(ParsedManifest parsed) : parsed_(std::move(parsed)) {}

  absl::Status Open(const std::string& folder) {
    for (const auto& [name, digest] : parsed_.files) {
      RF_RETURN_IF_ERROR(OpenFile(folder, name, digest));
    }
    if (parsed_.published) RF_RETURN_IF_ERROR(InferDimensions());
    for (int layer = manifest().split + 1; layer < manifest().layers; ++layer) {
      RF_RETURN_IF_ERROR(FindMapTensors(manifest(), layer, tensors_).status());
    }
    return DecodeGate(manifest(), tensors_).status();
  }

  const MapSetManifest& manifest() const override { return parsed_.manifest; }

  absl::StatusOr<LayerMap> ReadLayer(int layer) const override {
    if (layer <= manifest().split || layer >= manifest().layers) {
      return Refuse("MAPS_LAYER_RANGE", absl::StrCat("layer ", layer, " has no map; the set covers layers ",
                                                     manifest().split + 1, " to ", manifest().layers - 1));
    }
    RF_ASSIGN_OR_RETURN(const MapTensors tensors, FindMapTensors(manifest(), layer, tensors_));
    return DecodeMap(manifest(), layer, tensors);
  }

  absl::StatusOr<Gate> ReadGate() const override { return DecodeGate(manifest(), tensors_); }

 private:
  absl::Status OpenFile(const std::string& folder, const std::string& name, const std::string& digest) {
    const std::string path = absl::StrCat(folder, "/", name);
    RF_ASSIGN_OR_RETURN(const std::string have, base::Sha256HexOfFile(path));
    if (have != digest) {
      return base::Error(absl::StatusCode::kDataLoss, "MAPS_DAMAGED",
                         absl::StrCat(path, " is damaged or not the file that ", kManifestName,
                                      " names: its sha256 is ", have, ", must be ", digest));
    }
    if (!absl::EndsWith(name, ".safetensors")) return absl::OkStatus();
    auto file = formats::SafetensorsFile::Open(path);
    if (!file.ok()) return base::WithContext(file.status(), path);
    for (const formats::TensorInfo& info : file->tensors()) {
      RF_ASSIGN_OR_RETURN(formats::TensorBytes tensor, file->Tensor(info.name));
      if (!tensors_.emplace(info.name, std::move(tensor)).second) {
        return Refuse("MAPS_DUPLICATE_TENSOR", absl::StrCat(path, ": tensor ", formats::Quote(info.name),
                                                            " is in two files of the set"));
      }
    }
    files_.push_back(*std::move(file));  // views stay valid across the move
    return absl::OkStatus();
  }

  // A published folder's dimensions are those of its tensors: maps of layers split .. L-1, [d, d] each.
  absl::Status InferDimensions() {
    MapSetManifest& m = parsed_.manifest;
    int lowest = -1;
    for (const auto& [name, tensor] : tensors_) {
      const int layer = LayerOfTensor(name);
      if (layer < 0) continue;
      if (lowest < 0 || layer < lowest) lowest = layer;
      m.layers = std::max(m.layers, layer + 1);
      m.hidden = static_cast<int>(tensor.info.dims.empty() ? 0 : tensor.info.dims[0]);
    }
    if (lowest < 0 || m.hidden <= 0) {
      return Refuse("MAPS_LAYER_MISSING", "no tensor named layer.<l> or proj.<l>.* in any file of the set");
    }
    if (m.split < 0) m.split = lowest;
    if (m.split < 1 || m.split >= m.layers) {
      return Refuse("MAPS_MANIFEST", absl::StrCat("split ", m.split,
                                                  " does not lie below the set's last layer ", m.layers - 1));
    }
    return absl::OkStatus();
  }

  ParsedManifest parsed_;
  std::vector<formats::SafetensorsFile> files_;
  TensorMap tensors_;  // views into files_
};

absl::Status Differ(absl::string_view reason, absl::string_view what, absl::string_view maps,
                    absl::string_view model) {
  return base::Error(
      absl::StatusCode::kFailedPrecondition, reason,
      absl::StrCat("the map set was fitted for another ", what, ": ", maps, ", this model has ", model));
}

// Published sets state no dimensions of ours: depth and width are all that their tensors tell.
bool SameDimensions(const MapSetManifest& m, const base::ModelIdentity& model) {
  if (!m.model.dimensions.empty()) return m.model.dimensions == model.dimensions;
  return absl::StartsWith(model.dimensions, absl::StrCat(m.layers, " layers, ", m.hidden, " wide,"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MapSet>> MapSet::Load(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifestName);
  auto text = base::ReadFile(path);
  if (!text.ok()) return base::WithContext(text.status(), "no map set");
  auto parsed = ParseManifest(*text);
  if (!parsed.ok()) return base::WithContext(parsed.status(), path);
  auto set = std::make_unique<FileMapSet>(*std::move(parsed));
  if (absl::Status status = set->Open(folder); !status.ok()) return base::WithContext(status, folder);
  return set;
}

absl::Status CheckCompatible(const MapSetManifest& m, const base::ModelIdentity& model, int split,
                             std::string* warning) {
  warning->clear();
  const bool published = m.model.dimensions.empty();
  if (m.model.arch != model.arch && !(published && m.model.arch.empty())) {
    return Differ("MAPS_OTHER_ARCH", "architecture", m.model.arch, model.arch);
  }
  if (!SameDimensions(m, model)) {
    const std::string mine =
        published ? absl::StrCat(m.layers, " layers, ", m.hidden, " wide") : m.model.dimensions;
    return Differ("MAPS_OTHER_DIMENSIONS", "shape", mine, model.dimensions);
  }
  if (!published && m.model.tokenizer_digest != model.tokenizer_digest) {
    return Differ("MAPS_OTHER_TOKENIZER", "tokenizer", m.model.tokenizer_digest, model.tokenizer_digest);
  }
  if (split >= 0 && split != m.split) {
    return base::Error(absl::StatusCode::kFailedPrecondition, "MAPS_OTHER_SPLIT",
                       absl::StrCat("the map set was fitted for split ", m.split, ", asked for ", split));
  }
  if (published) {
    *warning =
        "a published projector folder: its tokenizer cannot be compared, and it names no outlier threshold";
  } else if (m.model.weights_digest != model.weights_digest) {
    *warning = absl::StrCat("the map set was fitted on other weights of this model (", m.model.name,
                            "); it runs, its report is not this model's");
  }
  return absl::OkStatus();
}

}  // namespace ridgefill::ridge
