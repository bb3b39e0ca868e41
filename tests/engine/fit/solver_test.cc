#include "engine/fit/solver.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "engine/base/rng.h"
#include "engine/base/status.h"

namespace ridgefill::fit {
namespace {

// Rows of a made-up model of 3 layers, split 1: one late layer, d inputs, kv columns of K and of V each.
struct Data {
  int d = 0, kv = 0;
  std::vector<std::vector<double>> x, y;  // by row
};

double Normal(base::Rng& rng) {
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += rng.NextDouble();
  return sum - 6;
}

// y = A x + b + noise; K is nearly noiseless, V is mostly noise. Inputs are correlated and far from centred.
Data MakeData(uint64_t seed, int rows, int d, int kv, double k_noise, double v_noise) {
  base::Rng truth(99), rng(seed);
  std::vector<double> a(2 * kv * d), b(2 * kv), mixing(d * d);
  for (double& value : a) value = Normal(truth);
  for (double& value : b) value = 5 * Normal(truth);
  for (double& value : mixing) value = Normal(truth);
  Data data{d, kv, {}, {}};
  for (int row = 0; row < rows; ++row) {
    std::vector<double> z(d), x(d), y(2 * kv);
    for (double& value : z) value = Normal(rng);
    for (int i = 0; i < d; ++i) {
      x[i] = 20 + i;
      for (int j = 0; j < d; ++j) x[i] += mixing[i * d + j] * z[j];
    }
    for (int o = 0; o < 2 * kv; ++o) {
      y[o] = b[o] + (o < kv ? k_noise : v_noise) * Normal(rng);
      for (int i = 0; i < d; ++i) y[o] += a[o * d + i] * x[i];
    }
    data.x.push_back(x);
    data.y.push_back(y);
  }
  return data;
}

Samples SamplesOf(const Data& data, std::vector<int64_t> ends = {}) {
  Samples samples;
  samples.inputs = data.d;
  samples.rows.resize(data.x.size());
  samples.ends = ends.empty() ? std::vector<int64_t>{static_cast<int64_t>(data.x.size())} : std::move(ends);
  for (const auto& x : data.x) {
    for (double value : x) samples.x.push_back(static_cast<float>(value));
  }
  return samples;
}

LayerSamples LayerOf(const Data& data, std::vector<float> weights = {}) {
  LayerSamples layer;
  for (const auto& y : data.y) {
    for (double value : y) layer.y.push_back(static_cast<float>(value));
  }
  layer.weights = std::move(weights);
  return layer;
}

absl::StatusOr<SolvedLayer> SolveSamples(Samples fit, const LayerSamples& fit_layer, Samples held_out,
                                         const LayerSamples& held_out_layer,
                                         const SolveOptions& options = {}) {
  const auto backend = kernels::MakeReferenceBackend();
  auto solver = Solver::Create(*backend, std::move(fit), std::move(held_out), options);
  if (!solver.ok()) return solver.status();
  const auto sums = (*solver)->Sum(fit_layer, held_out_layer);
  if (!sums.ok()) return sums.status();
  return (*solver)->Solve(**sums);
}

absl::StatusOr<SolvedLayer> SolveAll(const Data& fit, const Data& held_out,
                                     const SolveOptions& options = {}) {
  return SolveSamples(SamplesOf(fit), LayerOf(fit), SamplesOf(held_out), LayerOf(held_out), options);
}

// Gaussian elimination with partial pivoting: solves a z = b for one right-hand side.
std::vector<long double> Eliminate(std::vector<std::vector<long double>> a, std::vector<long double> b) {
  const size_t n = b.size();
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t row = column; row < n; ++row) {
      if (std::fabs(a[row][column]) > std::fabs(a[pivot][column])) pivot = row;
    }
    std::swap(a[column], a[pivot]);
    std::swap(b[column], b[pivot]);
    for (size_t row = column + 1; row < n; ++row) {
      const long double factor = a[row][column] / a[column][column];
      for (size_t k = column; k < n; ++k) a[row][k] -= factor * a[column][k];
      b[row] -= factor * b[column];
    }
  }
  for (size_t row = n; row-- > 0;) {
    for (size_t k = row + 1; k < n; ++k) b[row] -= a[row][k] * b[k];
    b[row] /= a[row][row];
  }
  return b;
}

// The definition: minimise sum (y - w x - c)^2 + lambda s |w|^2 over w and c together, by the normal
// equations of the inputs with a column of ones, whose penalty is 0. s is the mean over inputs of their
// summed squared deviation. Gives w, then c.
std::vector<long double> BruteForce(const Data& data, int output, double lambda) {
  const int d = data.d;
  long double scale = 0;
  for (int i = 0; i < d; ++i) {
    long double mean = 0;
    for (const auto& x : data.x) mean += x[i] / static_cast<long double>(data.x.size());
    for (const auto& x : data.x) scale += (x[i] - mean) * (x[i] - mean) / d;
  }
  std::vector<std::vector<long double>> a(d + 1, std::vector<long double>(d + 1, 0));
  std::vector<long double> b(d + 1, 0);
  for (size_t row = 0; row < data.x.size(); ++row) {
    std::vector<long double> x(data.x[row].begin(), data.x[row].end());
    x.push_back(1);
    for (int i = 0; i <= d; ++i) {
      for (int j = 0; j <= d; ++j) a[i][j] += x[i] * x[j];
      b[i] += x[i] * data.y[row][output];
    }
  }
  for (int i = 0; i < d; ++i) a[i][i] += lambda * scale;
  return Eliminate(a, b);
}

double HeldOutError(const Data& held_out, int begin, int end,
                    const std::vector<std::vector<long double>>& maps) {
  long double error = 0;
  for (size_t row = 0; row < held_out.x.size(); ++row) {
    for (int o = begin; o < end; ++o) {
      long double e = held_out.y[row][o] - maps[o][held_out.d];
      for (int i = 0; i < held_out.d; ++i) e -= maps[o][i] * held_out.x[row][i];
      error += e * e;
    }
  }
  return static_cast<double>(error);
}

TEST(Solver, EqualsBruteForceNormalEquations) {
  const Data fit = MakeData(1, 200, 9, 3, 0.5, 5), held_out = MakeData(2, 50, 9, 3, 0.5, 5);
  for (double lambda : {3e-5, 1e-2, 0.3}) {
    SolveOptions options;
    options.penalties = {lambda};
    const auto solved = SolveAll(fit, held_out, options);
    ASSERT_TRUE(solved.ok()) << solved.status();
    for (int o = 0; o < 6; ++o) {
      const std::vector<long double> want = BruteForce(fit, o, lambda);
      // Products come as f32: 2^-24 relative to sums over 200 rows of values around 20.
      for (int i = 0; i < 9; ++i)
        EXPECT_NEAR(solved->map.weight[o * 9 + i], want[i], 1e-4 * (1 + std::fabs(want[i])));
      EXPECT_NEAR(solved->map.bias[o], want[9], 1e-3 * (1 + std::fabs(want[9])));
    }
  }
}

// A row of weight 2 is that row twice, one of weight 0 is not there.
TEST(Solver, WeightsCountRows) {
  const Data fit = MakeData(1, 60, 5, 2, 1, 2), held_out = MakeData(2, 50, 5, 2, 1, 2);
  std::vector<float> weights(60, 1);
  Data counted{5, 2, {}, {}};
  for (size_t row = 0; row < 60; ++row) {
    weights[row] = static_cast<float>(row % 3);
    for (size_t i = 0; i < row % 3; ++i) counted.x.push_back(fit.x[row]), counted.y.push_back(fit.y[row]);
  }
  SolveOptions options;
  options.penalties = {1e-2};
  const auto weighted =
      SolveSamples(SamplesOf(fit), LayerOf(fit, weights), SamplesOf(held_out), LayerOf(held_out), options);
  ASSERT_TRUE(weighted.ok()) << weighted.status();
  const auto twice = SolveAll(counted, held_out, options);
  for (size_t i = 0; i < twice->map.weight.size(); ++i) {
    EXPECT_NEAR(weighted->map.weight[i], twice->map.weight[i], 1e-4 * (1 + std::fabs(twice->map.weight[i])));
  }
  EXPECT_NEAR(weighted->k.residual, twice->k.residual, 1e-5);
}

TEST(Solver, ChoosesThePenaltyThatHeldOutRowsLikeBestForKAndVApart) {
  // Few rows and much noise in V: it wants more penalty than K.
  const Data fit = MakeData(3, 40, 20, 4, 0.01, 60), held_out = MakeData(4, 300, 20, 4, 0.01, 60);
  const SolveOptions options;
  const auto solved = SolveAll(fit, held_out);
  ASSERT_TRUE(solved.ok()) << solved.status();
  double best[2] = {INFINITY, INFINITY}, penalty[2] = {0, 0};
  for (double lambda : options.penalties) {
    std::vector<std::vector<long double>> maps;
    maps.reserve(8);
    for (int o = 0; o < 8; ++o) maps.push_back(BruteForce(fit, o, lambda));
    for (int half : {0, 1}) {
      const double error = HeldOutError(held_out, 4 * half, 4 * half + 4, maps);
      if (error < best[half]) best[half] = error, penalty[half] = lambda;
    }
  }
  EXPECT_EQ(solved->k.penalty, penalty[0]);
  EXPECT_EQ(solved->v.penalty, penalty[1]);
  EXPECT_LT(penalty[0], penalty[1]);
  EXPECT_EQ(solved->k.shrinkage, 0) << "no mixture";

  double energy[2] = {0, 0};
  for (int o = 0; o < 8; ++o) {
    double mean = 0;
    for (const auto& y : held_out.y) mean += y[o] / static_cast<double>(held_out.y.size());
    for (const auto& y : held_out.y) energy[o / 4] += (y[o] - mean) * (y[o] - mean);
  }
  EXPECT_NEAR(solved->k.residual, best[0] / energy[0], 1e-6);
  EXPECT_NEAR(solved->v.residual, best[1] / energy[1], 1e-4 * best[1] / energy[1]);
}

TEST(Solver, RecoversLinearTargets) {
  const Data fit = MakeData(5, 500, 6, 2, 0, 0), held_out = MakeData(6, 50, 6, 2, 0, 0);
  const auto solved = SolveAll(fit, held_out);
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_EQ(solved->k.penalty, 3e-5) << "nothing to smooth: the smallest penalty";
  EXPECT_EQ(solved->v.penalty, 3e-5);
  EXPECT_LT(solved->k.residual, 1e-6);
  base::Rng truth(99);
  for (int i = 0; i < 4 * 6; ++i) EXPECT_NEAR(solved->map.weight[i], Normal(truth), 0.02);
}

// Rows on either side of a plane follow laws of their own: y = a x or y = -a x.
TEST(Solver, AMixtureLearnsWhatOneMapCannot) {
  const auto bend = [](Data data, int64_t rows) {
    for (size_t row = static_cast<size_t>(rows); row < data.y.size(); ++row) {
      for (double& y : data.y[row]) y = -y;
    }
    return data;
  };
  const Data fit = bend(MakeData(5, 400, 6, 2, 0, 0), 150), held_out = bend(MakeData(6, 60, 6, 2, 0, 0), 20);
  const auto one = SolveAll(fit, held_out);
  const auto two = SolveSamples(SamplesOf(fit, {150, 400}), LayerOf(fit), SamplesOf(held_out, {20, 60}),
                                LayerOf(held_out), {});
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_GT(one->k.residual, 0.1);
  EXPECT_LT(two->k.residual, 0.1 * one->k.residual);
  EXPECT_EQ(two->map.weight.size(), 2 * one->map.weight.size());
  EXPECT_EQ(two->k.shrinkage, SolveOptions().shrinkages.front()) << "nothing to shrink: the least";
}

// Ten maps of few rows each and much noise, but of two laws: a map alone has too few rows for its own, its
// group has enough.
TEST(Solver, AMixtureLearnsFromItsGroups) {
  const auto bend = [](Data data) {
    for (size_t row = data.y.size() / 2; row < data.y.size(); ++row) {
      for (double& y : data.y[row]) y = -y;
    }
    return data;
  };
  const Data fit = bend(MakeData(5, 200, 12, 2, 8, 8)), held_out = bend(MakeData(6, 600, 12, 2, 8, 8));
  std::vector<int64_t> ends, held_ends;
  for (int64_t map = 1; map <= 10; ++map) ends.push_back(20 * map), held_ends.push_back(60 * map);
  SolveOptions grouped;
  grouped.groups = {{0, 0, 0, 0, 0, 1, 1, 1, 1, 1}};
  const auto solve = [&](const SolveOptions& options) {
    return SolveSamples(SamplesOf(fit, ends), LayerOf(fit), SamplesOf(held_out, held_ends), LayerOf(held_out),
                        options);
  };
  const auto flat = solve({}), nested = solve(grouped);
  ASSERT_TRUE(flat.ok() && nested.ok());
  EXPECT_LT(nested->k.residual, 0.8 * flat->k.residual);
  EXPECT_LT(nested->v.residual, 0.8 * flat->v.residual);
}

TEST(Solver, AMixtureOfTheSameIsOneMap) {
  // Pure noise in few rows: every map's own difference is chance, and held-out rows say so.
  const Data fit = MakeData(7, 60, 20, 2, 100, 100), held_out = MakeData(8, 600, 20, 2, 100, 100);
  SolveOptions options;
  options.shrinkages = {1e-6};
  const auto one = SolveAll(fit, held_out, options);
  const auto two = SolveSamples(SamplesOf(fit, {30, 60}), LayerOf(fit), SamplesOf(held_out, {300, 600}),
                                LayerOf(held_out), options);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(two->k.shrinkage, 0);
  const size_t half = one->map.weight.size();
  for (size_t i = 0; i < half; ++i) {
    EXPECT_NEAR(two->map.weight[i], one->map.weight[i], 1e-4 * (1 + std::fabs(one->map.weight[i])));
    EXPECT_EQ(two->map.weight[half + i], two->map.weight[i]);
  }
}

TEST(Solver, RefusesWhatCannotBeSolved) {
  const Data data = MakeData(9, 30, 4, 1, 1, 1), none{4, 1, {}, {}};
  const auto reason = [&](const absl::Status& status) {
    const auto detail = base::GetErrorDetail(status);
    return detail ? detail->reason : status.ToString();
  };
  EXPECT_EQ(reason(SolveAll(none, data).status()), "FIT_NO_ROWS");
  EXPECT_EQ(reason(SolveAll(data, none).status()), "FIT_NO_ROWS");
  Data same = data;  // no variance at all: nothing to scale a penalty by
  for (auto& x : same.x) x = {1, 1, 1, 1};
  EXPECT_EQ(reason(SolveAll(same, data).status()), "FIT_SINGULAR");
  EXPECT_EQ(reason(SolveSamples(SamplesOf(data), LayerOf(data, std::vector<float>(30, 0)), SamplesOf(data),
                                LayerOf(data))
                       .status()),
            "FIT_NO_ROWS");
}

}  // namespace
}  // namespace ridgefill::fit
