// Samples to maps: centred ridge regression in fp64, the bias unpenalised, each row weighed, the penalty
// chosen on held-out rows separately for K and V of each layer; then, for a mixture, each map's difference to
// the one map of all rows, shrunk towards nothing by a second penalty, and so on from coarser to finer
// mixtures (docs/method.md, "The map").
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/fit/samples.h"
#include "engine/ridge/map_set.h"
#include "kernels/api/backend.h"

namespace ridgefill::fit {

struct SolveOptions {
  // Times trace(Gc) / inputs, the mean variance sum of an input.
  std::vector<double> penalties = {3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1};
  // Of a mixture's differences, times the same.
  std::vector<double> shrinkages = {1e-3, 5e-3, 2e-2, 1e-1};
  // Coarser mixtures on the way from one map to all of them, coarsest first: by map, the group that it is in.
  // Each map is shrunk towards its group's. Maps of one group are in one group of the coarser mixture too.
  std::vector<std::vector<int>> groups;
};

// One layer's targets and weights of the samples.
struct LayerSamples {
  std::vector<float> y;        // [n, 2 * kv_width]
  std::vector<float> weights;  // [n]; empty: all 1
};

// K or V of a solved layer.
struct SolvedHalf {
  double penalty = 0;
  double shrinkage = 0;  // of the finest mixture; 0: none, or it does no better than the coarser one
  double residual = 0;   // weighted held-out ||Y' - Y||^2 / ||Y - mean||^2
};

struct SolvedLayer {
  ridge::LayerMap map;  // folded; layer is the caller's
  SolvedHalf k, v;
};

// A layer's weighted sums over the samples of each map.
class LayerSums {
 public:
  virtual ~LayerSums() = default;
};

class Solver {
 public:
  // Both in the order of the same gate. INVALID_ARGUMENT (FIT_NO_ROWS) without fit or held-out rows. The
  // backend must outlive the solver.
  static absl::StatusOr<std::unique_ptr<Solver>> Create(kernels::Backend& backend, Samples fit,
                                                        Samples held_out, const SolveOptions& options);
  virtual ~Solver() = default;
  // On the backend; one call at a time.
  virtual absl::StatusOr<std::unique_ptr<LayerSums>> Sum(const LayerSamples& fit,
                                                         const LayerSamples& held_out) = 0;
  // On the host; thread-safe. INVALID_ARGUMENT (FIT_NO_ROWS) when no row weighs anything; FAILED_PRECONDITION
  // (FIT_SINGULAR) when no penalty gives a positive definite system.
  virtual absl::StatusOr<SolvedLayer> Solve(const LayerSums& sums) const = 0;
};

}  // namespace ridgefill::fit
