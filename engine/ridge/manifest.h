// ridgefill.json, to and from MapSetManifest (docs/formats.md). Pure functions over untrusted text.
//
// A field that this version does not know is ignored: a later writer may add some under the same
// format_version, and one that changes what a known field means must raise it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/formats/json.h"
#include "engine/ridge/map_set.h"

namespace ridgefill::ridge {

inline constexpr char kManifestName[] = "ridgefill.json";
// Sets with normalised inputs are of version 3; others with more than one map a layer, or more than one
// input, of version 2; all others of version 1.
inline constexpr int kFormatVersion = 3;

struct ParsedManifest {
  MapSetManifest manifest;                   // digest filled in
  std::map<std::string, std::string> files;  // plain file name -> sha256, lower-case hex
  // A published projector folder: unfolded, without dimensions; the tensors give them.
  bool published = false;
};

// INVALID_ARGUMENT: MAPS_MANIFEST, MAPS_FORMAT_VERSION, MAPS_FILE_NAME (a name that leaves the folder), or
// json.h's, all naming the field.
absl::StatusOr<ParsedManifest> ParseManifest(absl::string_view text);

// A whole number of a manifest's: MAPS_MANIFEST outside [low, high], or json.h's, naming the field.
absl::StatusOr<int> GetIntIn(const formats::Json& json, absl::string_view key, int64_t low, int64_t high);

std::string ManifestText(const MapSetManifest& manifest, const std::map<std::string, std::string>& files);

}  // namespace ridgefill::ridge
