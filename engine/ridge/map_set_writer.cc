// Writing a map set so that a reader, or a crash, at any moment finds a whole one: the tensors go to a file
// named after its contents, ridgefill.json is replaced last, and only then files that the old one listed are
// removed.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/sha256.h"
#include "engine/base/status.h"
#include "engine/formats/safetensors.h"
#include "engine/ridge/manifest.h"
#include "engine/ridge/map_codec.h"
#include "engine/ridge/map_set.h"
#include "engine/ridge/map_tensors.h"

namespace ridgefill::ridge {
namespace {

using formats::Encoding;
using formats::TensorBytes;

absl::Status Failed(absl::string_view what, const std::string& path, const std::error_code& error) {
  return base::Error(absl::StatusCode::kUnavailable, "FILE_ERROR",
                     absl::StrCat("cannot ", what, " ", path, ": ", error.message()));
}

// Encoded tensors of all layers, and the bytes that they view.
class EncodedMaps {
 public:
  EncodedMaps(const MapSetManifest& manifest, const std::vector<LayerMap>& maps, const Gate& gate) {
    const int64_t rows = MapRows(manifest) * manifest.mixture, columns = MapInputs(manifest);
    if (manifest.mixture > 1) {
      RF_CHECK(static_cast<int64_t>(gate.weight.size()) == int64_t{manifest.mixture} * manifest.hidden);
      Add("gate.weight", Encoding::kF32, {manifest.mixture, manifest.hidden}, gate.weight);
      Add("gate.bias", Encoding::kF32, {manifest.mixture}, gate.bias);
    }
    for (const LayerMap& map : maps) {
      RF_CHECK(static_cast<int64_t>(map.weight.size()) == rows * columns);
      RF_CHECK(static_cast<int64_t>(map.bias.size()) == rows);
      const std::string prefix = TensorPrefix(manifest.folded, map.layer);
      if (manifest.dtype == "int8") {
        const Int8Weight weight = EncodeInt8(map.weight, columns);
        Add(prefix + ".codes", Encoding::kI8, {rows, columns}, weight.codes);
        Add(prefix + ".scale", Encoding::kBF16, {rows, ScaleGroups(columns)}, weight.scale);
      } else {
        Add(prefix + ".weight", Encoding::kBF16, {rows, columns}, EncodeBf16(map.weight));
      }
      Add(prefix + ".bias", Encoding::kF32, {rows}, map.bias);
    }
  }

  std::vector<TensorBytes> views() const {
    std::vector<TensorBytes> out;
    for (const auto& [info, bytes] : tensors_) out.push_back({info, bytes});
    return out;
  }

 private:
  template <typename T>
  void Add(std::string name, Encoding encoding, std::vector<int64_t> dims, const std::vector<T>& values) {
    formats::TensorInfo info;
    info.name = std::move(name);
    info.encoding = encoding;
    info.dims = std::move(dims);
    info.byte_size = values.size() * sizeof(T);
    tensors_.emplace_back(std::move(info), std::string(reinterpret_cast<const char*>(values.data()),
                                                       values.size() * sizeof(T)));
  }

  std::vector<std::pair<formats::TensorInfo, std::string>> tensors_;
};

// The name says what is inside, so that a new set never overwrites a file that an old manifest lists.
absl::StatusOr<std::pair<std::string, std::string>> WriteTensors(const std::string& folder,
                                                                 const MapSetManifest& manifest,
                                                                 const std::vector<LayerMap>& maps,
                                                                 const Gate& gate) {
  const EncodedMaps encoded(manifest, maps, gate);
  const std::string temporary = absl::StrCat(folder, "/maps.new.safetensors");
  RF_RETURN_IF_ERROR(formats::WriteSafetensors(temporary, encoded.views(), {{"format", "ridgefill-maps"}}));
  RF_ASSIGN_OR_RETURN(std::string digest, base::Sha256HexOfFile(temporary));
  std::string name = absl::StrCat("maps-", digest.substr(0, 12), ".safetensors");
  std::error_code error;
  std::filesystem::rename(temporary, absl::StrCat(folder, "/", name), error);
  if (error) return Failed("rename", temporary, error);
  return std::make_pair(std::move(name), std::move(digest));
}

// Files of the set that was here before; none when there was none that can be read.
std::map<std::string, std::string> ListedFiles(const std::string& folder) {
  const auto text = base::ReadFile(absl::StrCat(folder, "/", kManifestName));
  if (!text.ok()) return {};
  auto parsed = ParseManifest(*text);
  return parsed.ok() ? std::move(parsed->files) : std::map<std::string, std::string>();
}

absl::Status CheckLayers(const MapSetManifest& m, const std::vector<LayerMap>& maps) {
  RF_CHECK(m.dtype == "bf16" || m.dtype == "int8");
  std::vector<int> layers;
  layers.reserve(maps.size());
  for (const LayerMap& map : maps) layers.push_back(map.layer);
  std::sort(layers.begin(), layers.end());
  for (int layer = m.split + 1; layer < m.layers; ++layer) {
    const size_t i = layer - m.split - 1;
    if (i < layers.size() && layers[i] == layer) continue;
    return absl::InternalError(absl::StrCat("SaveMapSet: no map for layer ", layer));
  }
  return static_cast<int>(layers.size()) == m.layers - m.split - 1
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat("SaveMapSet: ", layers.size(), " maps for ",
                                                m.layers - m.split - 1, " layers"));
}

}  // namespace

absl::Status SaveMapSet(const std::string& folder, const MapSetManifest& manifest,
                        const std::vector<LayerMap>& maps, const Gate& gate) {
  RF_RETURN_IF_ERROR(CheckLayers(manifest, maps));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Failed("create", folder, error);
  const std::map<std::string, std::string> old_files = ListedFiles(folder);
  RF_ASSIGN_OR_RETURN(const auto file, WriteTensors(folder, manifest, maps, gate));
  RF_RETURN_IF_ERROR(
      base::WriteFileAtomically(absl::StrCat(folder, "/", kManifestName), ManifestText(manifest, {file})));
  for (const auto& [name, digest] : old_files) {
    if (name != file.first) std::remove(absl::StrCat(folder, "/", name).c_str());
  }
  return absl::OkStatus();
}

}  // namespace ridgefill::ridge
