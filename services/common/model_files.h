// Finds models and map sets by name or by path.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace ridgefill::common {

// Where models and maps are kept: $RIDGEFILL_HOME, else $HOME/.cache/ridgefill. main.cc reads the environment
// and passes the two values (null when unset).
std::string HomeFolder(const char* ridgefill_home, const char* home);

// `name` is a path to a .gguf file or a folder with config.json, or names <home>/models/<name>.gguf or
// <home>/models/<name>/. NOT_FOUND (MODEL_NOT_FOUND) says where it looked and what is there.
absl::StatusOr<std::string> FindModel(const std::string& home, const std::string& name);

// File or folder name without its extension: "smollm2-135m-instruct".
std::string ModelName(const std::string& model_path);

// Folder of the map set, empty for none; a folder without ridgefill.json is none. `maps`: empty takes
// <home>/maps/<model name> if it is there; "none" takes none; else a folder or a name under <home>/maps.
// NOT_FOUND (MAPS_NOT_FOUND).
absl::StatusOr<std::string> FindMaps(const std::string& home, const std::string& model_name,
                                     const std::string& maps);

}  // namespace ridgefill::common
