// One split's map set: rows to samples, samples to maps, maps onto disk, and the report of what was stored.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/fit/fit.h"
#include "engine/fit/row_file.h"
#include "engine/fit/samples.h"
#include "engine/fit/solver.h"
#include "engine/model/model.h"
#include "engine/ridge/map_set.h"

namespace ridgefill::fit {

// All borrowed until the fit is done.
struct SplitFit {
  const model::Model& model;
  const RowsKey& key;
  const std::vector<const RowFile*>& fit;
  const std::vector<const RowFile*>& held_out;
  const std::string& corpus;
  const FitOptions& options;
  int split = 0;
  std::string folder;  // of the map set
};

// Bytes of sums and what solving them takes that layers solved at the same time may have together.
inline constexpr int64_t kSolveBytes = int64_t{4} << 30;
// So many layers of a model are summed and solved at a time: at least one, at most one a thread. `groups`: of
// all coarser mixtures together.
int LayersAtOnce(const Samples& samples, int64_t kv_width, int64_t groups, int threads);

class SplitFitter {
 public:
  explicit SplitFitter(SplitFit job) : job_(std::move(job)) {}

  // The manifest as stored, report included. Errors: FIT_MIXTURE, FIT_NO_ROWS, FIT_SINGULAR, of files, or
  // whatever `progress` gave.
  absl::StatusOr<ridge::MapSetManifest> Run();

  std::function<absl::Status(FitStage stage, int64_t done, int64_t total)> progress;

 private:
  absl::Status Solve();
  absl::Status Cluster(Samples& fit, Samples& held_out);
  absl::Status SolveLayers(Solver& solver, int begin, int end);
  LayerSamples Layer(const std::vector<RowRef>& rows, int layer) const;
  absl::Status Store();
  absl::Status Report();

  const SplitFit job_;
  std::vector<RowRef> fit_rows_, held_out_rows_;  // in the order of the gate's choice
  ridge::Gate gate_;
  std::vector<SolvedLayer> solved_;  // layers split + 1 .. L - 1
  ridge::MapSetManifest manifest_;
};

}  // namespace ridgefill::fit
