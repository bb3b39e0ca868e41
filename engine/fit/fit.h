// Fits a map set: calibration text through the exact model into sums, sums into maps, maps onto disk, and the
// report of what was stored (docs/method.md, "The map").
//
// A run saves its sums beside the maps and takes them up again when it is started anew over the same
// documents, with the same result as if it had never stopped. Sums of other runs (other text, other machines)
// can be merged.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/model_identity.h"
#include "engine/fit/corpus.h"
#include "engine/model/model.h"
#include "engine/ridge/map_set.h"

namespace ridgefill::fit {

// Input rows that a fit should have per input dimension at least.
inline constexpr int64_t kRowsPerDimension = 40;

enum class FitStage : uint8_t { kOutliers, kSums, kSolve, kReport };
absl::string_view Name(FitStage stage);  // "outliers", "sums", "solve", "report"

struct FitProgress {
  FitStage stage = FitStage::kOutliers;
  int64_t done = 0, total = 0;  // documents of this stage
  int64_t tokens = 0;           // gone through the model since the start, over all stages
};

struct FitOptions {
  int split = 0;                   // [1, layers - 2]
  int64_t rows = 98304;            // prompt rows to fit on, held-out ones apart; rounded up to documents
  int64_t held_out_documents = 4;  // the corpus's first ones, never fitted
  std::string out;                 // folder of the map set
  std::string sums_path;           // empty: <out>/sums.safetensors
  // Sums files of runs over other documents, added before solving.
  std::vector<std::string> merge;
  std::string dtype = "bf16";  // "bf16" or "int8"
  std::string corpus;          // provenance, for people
  // Times the median norm of h_S over the calibration text; rows beyond are outliers.
  float outlier_ratio = 3.0f;
  // The absolute norm instead; 0: taken from `merge` if there is any, else estimated from the first rows of a
  // few documents. Runs that are to be merged need the same.
  float outlier_threshold = 0.0f;
  int tail_default = 512, tail_minimum = 64, min_bulk = 512;  // go into the manifest
  int64_t chunk_rows = 1024;
  int save_every = 8;  // documents between two saves of the sums
  // Called now and then from the calling thread; an error stops the run at once (sums stay as last saved).
  std::function<absl::Status(const FitProgress&)> progress;
};

struct FitResult {
  ridge::MapSetManifest manifest;     // as stored, report included
  std::vector<std::string> warnings;  // for people: too few rows, ...
  int64_t resumed_documents = 0;
};

// `documents` are in a fixed order (LoadCorpus). Errors: INVALID_ARGUMENT (FIT_...) for options that make no
// sense, FAILED_PRECONDITION (SUMS_...) for sums of something else, CANCELLED or whatever `progress` gave.
absl::StatusOr<FitResult> FitMaps(const model::Model& model, const base::ModelIdentity& identity,
                                  const std::vector<Document>& documents, const FitOptions& options);

}  // namespace ridgefill::fit
