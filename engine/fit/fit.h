// Fits a map set: calibration text through the exact model into rows on disk, rows into maps, maps onto disk,
// and the report of what was stored (docs/method.md, "The map").
//
// A run that was stopped goes on with the rows that are there, with the same result as if it had never
// stopped. Rows of other runs (other text, other machines) can be merged.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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

enum class FitStage : uint8_t { kRows, kSolve, kReport };
absl::string_view Name(FitStage stage);  // "rows", "solve", "report"

struct FitProgress {
  FitStage stage = FitStage::kRows;
  int64_t done = 0, total = 0;  // documents, of kSolve layers, over all splits
  int64_t tokens = 0;           // gone through the model since the start
};

struct FitOptions {
  std::vector<int> splits;         // ascending, each in [1, layers - 2]; one pass over the text for all
  int64_t rows = 81920;            // prompt rows to fit on, held-out ones apart; rounded up to documents
  int64_t held_out_documents = 4;  // the corpus's first ones, never fitted
  std::string out;                 // folder of the map set; of several splits: of their folders split-<S>
  // Where the rows are kept for another run; empty: <out>/rows, where those of this run are removed when the
  // map set is stored.
  std::string rows_folder;
  // Folders of rows of other runs over other documents, solved together with these.
  std::vector<std::string> merge;
  // Files of text that the maps will be measured on: path by sha256. No document, nor merged row, may be of
  // one of them (FIT_HELDOUT).
  std::map<std::string, std::string> measured_text;
  std::string dtype = "bf16";  // "bf16" or "int8"
  std::string corpus;          // provenance, for people
  bool weigh_rows = true;      // by what later rows attend to them
  int mixture = 8;             // maps per layer; 1: one for all rows
  bool previous_row = true;    // h_S of the row before is an input too
  bool normalise = true;       // inputs are divided by their root mean square
  uint64_t seed = 7;           // of the mixture's clusters
  // Times the median norm of h_S over the rows; rows beyond are outliers.
  float outlier_ratio = 3.0f;
  float outlier_threshold = 0.0f;                             // the absolute norm instead, unless 0
  int64_t mass_distance = 256;                                // RowsKey
  int tail_default = 512, tail_minimum = 64, min_bulk = 512;  // go into the manifest
  int64_t chunk_rows = 1024;
  // Called now and then from the calling thread; an error stops the run at once.
  std::function<absl::Status(const FitProgress&)> progress;
};

struct FittedSet {
  std::string folder;
  ridge::MapSetManifest manifest;  // as stored, report included
};

struct FitResult {
  std::vector<FittedSet> sets;        // in the order of the splits
  std::vector<std::string> warnings;  // for people: too few rows, ...
  int64_t resumed_documents = 0;
  // Files of rows of these splits that this run wrote or took up, and their folder.
  std::vector<std::string> row_files;
  std::string rows_folder;
};
// Those files go; whatever else is in the folder stays, and the folder with it.
void RemoveRows(const FitResult& result);

// `documents` are in a fixed order (LoadCorpus). Errors: INVALID_ARGUMENT (FIT_...) for options that make no
// sense, FAILED_PRECONDITION (ROWS_...) for rows of something else, CANCELLED or whatever `progress` gave.
absl::StatusOr<FitResult> FitMaps(const model::Model& model, const base::ModelIdentity& identity,
                                  const std::vector<Document>& documents, const FitOptions& options);

}  // namespace ridgefill::fit
