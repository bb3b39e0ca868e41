#include "services/cli/report_table.h"

#include "absl/strings/str_format.h"

namespace ridgefill::cli {

void PrintReport(const ridge::MapSetManifest& manifest) {
  if (manifest.report.empty()) {
    absl::PrintF("no held-out report in this map set\n");
    return;
  }
  absl::PrintF("\n          ------ ridge ------   ----- identity ----   ---- penalty ----\n");
  absl::PrintF("  layer   K cosine   V error   K cosine   V error       K         V\n");
  for (const ridge::LayerReport& layer : manifest.report) {
    absl::PrintF("  %5d   %8.4f  %8.4f   %8.4f  %8.4f   %8.1e  %8.1e\n", layer.layer, layer.k_cosine,
                 layer.v_error, layer.identity_k_cosine, layer.identity_v_error, layer.k_penalty,
                 layer.v_penalty);
  }
}

}  // namespace ridgefill::cli
