// The search that chose a map set's split: kept in its manifest under `sweep` (docs/formats.md). Untrusted
// bytes in, checked values out. Serving a set does not read it, so a damaged one keeps no set from loading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridgefill::ridge {

// What a candidate costs in one measure, with its 95 % interval.
struct SweepFigure {
  std::string measure;       // "nll": nats per token over exact; "needle": share of what exact solves
  std::string cell;          // the window; the task
  int length = 0, tail = 0;  // tokens of a document or item, and of its tail
  int64_t count = 0;         // documents; items that exact solves
  double mean = 0, low = 0, high = 0;
};

struct SweptSplit {
  int split = 0;
  bool within = false;  // all bounds of the search
  bool chosen = false;  // the smallest such one
  std::vector<SweepFigure> figures;
};

// Of a manifest's text: by split; empty when there is none. INVALID_ARGUMENT (MAPS_MANIFEST, or json.h's)
// naming the field.
absl::StatusOr<std::vector<SweptSplit>> ParseSweep(absl::string_view manifest);

// The same of a map set's folder.
absl::StatusOr<std::vector<SweptSplit>> ReadSweep(const std::string& folder);
// In place of an older one; the other fields stay as they are. The set's digest changes.
absl::Status StoreSweep(const std::string& folder, const std::vector<SweptSplit>& sweep);

}  // namespace ridgefill::ridge
