// ridgefill inspect MAPS: what a map set is, and its held-out report.
#include <CLI/CLI.hpp>
#include <memory>

#include "absl/strings/str_format.h"
#include "engine/base/status.h"
#include "engine/ridge/map_set.h"
#include "services/cli/command.h"
#include "services/cli/report_table.h"
#include "services/common/model_files.h"

namespace ridgefill::cli {
namespace {

absl::Status Inspect(const std::string& home, const std::string& maps) {
  RF_ASSIGN_OR_RETURN(const std::string folder, common::FindMaps(home, maps, maps));
  RF_ASSIGN_OR_RETURN(const auto set, ridge::MapSet::Load(folder));
  const ridge::MapSetManifest& manifest = set->manifest();
  absl::PrintF("map set    %s\n", folder);
  absl::PrintF("digest     %s\n", manifest.digest);
  absl::PrintF("model      %s (%s: %s)\n", manifest.model.name, manifest.model.arch,
               manifest.model.dimensions);
  absl::PrintF("split      %d of %d layers\n", manifest.split, manifest.layers);
  absl::PrintF("form       %s, %s\n",
               manifest.folded ? "folded (h_S to K and V)" : "unfolded (h_S to the layer's input)",
               manifest.dtype);
  absl::PrintF("tail       %d by default, at least %d; at least %d bulk rows, else exact\n",
               manifest.tail_default, manifest.tail_minimum, manifest.min_bulk);
  absl::PrintF("outliers   ||h_S|| > %.4g (%.3g times the calibration median)\n", manifest.outlier_threshold,
               manifest.outlier_ratio);
  absl::PrintF("fitted on  %d rows of %s\n", manifest.fit_rows, manifest.fit_corpus);
  PrintReport(manifest);
  return absl::OkStatus();
}

}  // namespace

void AddInspect(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand(
      "inspect",
      "Prints what a map set is and how well it predicts held-out K and V, beside the identity fill.");
  auto maps = std::make_shared<std::string>();
  command->add_option("maps", *maps, "Folder of the map set, or a name under $RIDGEFILL_HOME/maps")
      ->type_name("MAPS")
      ->required();
  command->callback(
      [&context, maps] { context.run = [&context, maps] { return Inspect(context.home, *maps); }; });
}

}  // namespace ridgefill::cli
