#include "services/common/model_files.h"

#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"

namespace ridgefill::common {
namespace {

namespace fs = std::filesystem;

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool IsModel(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return Exists(path / "config.json");
  return Exists(path);
}

// SaveMapSet writes it last: without it a fit did not come to its end.
bool IsMapSet(const fs::path& path) { return Exists(path / "ridgefill.json"); }

std::string Names(const fs::path& folder, bool (*is_one)(const fs::path&)) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const bool hidden = absl::StartsWith(it->path().filename().string(), ".");
    if (!hidden && is_one(it->path())) names.insert(ModelName(it->path().string()));
  }
  return names.empty() ? "nothing" : absl::StrJoin(names, ", ");
}

}  // namespace

std::string HomeFolder(const char* ridgefill_home, const char* home) {
  if (ridgefill_home != nullptr && ridgefill_home[0] != '\0') return ridgefill_home;
  return (fs::path(home == nullptr ? "." : home) / ".cache" / "ridgefill").string();
}

absl::StatusOr<std::string> FindModel(const std::string& home, const std::string& name) {
  if (IsModel(name)) return name;
  const fs::path models = fs::path(home) / "models";
  for (const fs::path& candidate : {models / (name + ".gguf"), models / name}) {
    if (!name.empty() && IsModel(candidate)) return candidate.string();
  }
  return base::Error(
      absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
      absl::StrCat("no model \"", name, "\": neither a .gguf file, nor a folder with config.json, ",
                   "nor a name under ", models.string(), " (which has: ", Names(models, &IsModel), ")"));
}

std::string ModelName(const std::string& model_path) {
  fs::path path(model_path);
  if (!path.has_filename()) path = path.parent_path();  // "folder/"
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

absl::StatusOr<std::string> FindMaps(const std::string& home, const std::string& model_name,
                                     const std::string& maps) {
  if (maps == "none") return std::string();
  const fs::path folder = fs::path(home) / "maps";
  if (maps.empty()) {
    const fs::path own = folder / model_name;
    return IsMapSet(own) ? own.string() : std::string();
  }
  if (IsMapSet(maps)) return maps;
  if (IsMapSet(folder / maps)) return (folder / maps).string();
  return base::Error(
      absl::StatusCode::kNotFound, "MAPS_NOT_FOUND",
      absl::StrCat("no map set \"", maps, "\": neither a folder with ridgefill.json nor a name under ",
                   folder.string(), " (which has: ", Names(folder, &IsMapSet), ")"));
}

}  // namespace ridgefill::common
