// The running sums that a fit is solved from (docs/method.md, "The map"): additive over documents, machines
// and time, small beside the rows they stand for, and enough to solve for any penalty later.
//
// Plain data, not thread-safe. Errors: INVALID_ARGUMENT or FAILED_PRECONDITION (SUMS_...), naming file and
// difference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/model_identity.h"

namespace ridgefill::fit {

// What sums were taken of. Only equal keys may be added up: sums of another model, split or outlier rule are
// sums of other things.
struct SumsKey {
  base::ModelIdentity model;
  int layers = 0, hidden = 0, kv_width = 0;
  int split = 0;
  float outlier_threshold = 0;
  float outlier_ratio = 0;  // that the run was given; goes into the manifest
};

// Of one late layer's targets, K then V.
struct LayerSums {
  std::vector<double> y;   // [2 * kv_width]
  std::vector<double> yy;  // [2 * kv_width], sum of squares
  std::vector<double> xy;  // [d, 2 * kv_width]
};

struct Sums {
  Sums() = default;
  explicit Sums(const SumsKey& key);  // zeros

  int64_t rows = 0;
  std::vector<double> x;        // [d]
  std::vector<double> xx;       // [d, d]
  std::vector<LayerSums> late;  // layers split + 1 .. L - 1
};

// The same shapes, or an INTERNAL error.
absl::Status Add(const Sums& more, Sums& to);

// A run's sums and how far it has come: what is saved while it runs.
struct SumsFile {
  SumsKey key;
  std::string corpus;              // for people
  std::string documents_digest;    // of the run's documents, in order; a run resumes only over the same ones
  int64_t held_out_documents = 0;  // the first ones
  int64_t documents_done = 0;      // held out and fitted
  Sums fit, held_out;
};

// SUMS_OTHER_MODEL, SUMS_OTHER_SPLIT, SUMS_OTHER_OUTLIERS or SUMS_OTHER_OUTLIER_RATIO: FAILED_PRECONDITION
// naming both values.
absl::Status CheckSameKey(const SumsKey& mine, const SumsKey& other);

absl::Status SaveSums(const std::string& path, const SumsFile& file);
absl::StatusOr<SumsFile> LoadSums(const std::string& path);

}  // namespace ridgefill::fit
