// Sums to maps: centred ridge regression in fp64, the bias unpenalised, the penalty chosen on held-out sums
// separately for K and V of each layer (docs/method.md, "The map"). Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "engine/fit/sums.h"
#include "engine/ridge/map_set.h"

namespace ridgefill::fit {

struct SolveOptions {
  // Times trace(Gc) / d, the mean variance sum of an input.
  std::vector<double> penalties = {3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1};
  int threads = 1;
};

struct SolvedLayer {
  ridge::LayerMap map;  // folded: weight [2 * kv_width, d], bias [2 * kv_width]
  double k_penalty = 0, v_penalty = 0;
  // Held-out ||Y' - Y||^2 / ||Y - mean||^2 at those penalties, from the sums.
  double k_residual = 0, v_residual = 0;
};

// INVALID_ARGUMENT (FIT_NO_ROWS) without fit or held-out rows; FAILED_PRECONDITION (FIT_SINGULAR) when no
// penalty gives a positive definite system. Layers split + 1 .. L - 1 in order.
absl::StatusOr<std::vector<SolvedLayer>> Solve(const SumsKey& key, const Sums& fit, const Sums& held_out,
                                               const SolveOptions& options);

}  // namespace ridgefill::fit
