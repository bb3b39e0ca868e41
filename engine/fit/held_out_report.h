// How well a map set predicts K and V on documents that its fit never saw, beside the identity fill. Outlier
// rows are left out, as a fill leaves them out.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/fit/row_file.h"
#include "engine/model/model.h"
#include "engine/ridge/device_maps.h"

namespace ridgefill::fit {

struct ReportOptions {
  int64_t chunk_rows = 1024;
  // After each document; an error ends the run.
  std::function<absl::Status(int64_t documents_done)> progress;
};

// The maps go through the same code as a fill, in the backend's own precision. Penalties and shrinkages are
// left 0. RoPE turns K and its prediction alike, so the cosine is that of the cached K.
absl::StatusOr<std::vector<ridge::LayerReport>> HeldOutReport(const model::Model& model,
                                                              const ridge::DeviceMaps& maps,
                                                              absl::Span<const RowFile* const> documents,
                                                              const ReportOptions& options);

}  // namespace ridgefill::fit
