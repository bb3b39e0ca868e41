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

SumsKey KeyOf(const Data& data) {
  SumsKey key;
  key.layers = 3;
  key.split = 1;
  key.hidden = data.d;
  key.kv_width = data.kv;
  return key;
}

Sums SumsOf(const Data& data) {
  Sums sums(KeyOf(data));
  const int d = data.d, columns = 2 * data.kv;
  for (size_t row = 0; row < data.x.size(); ++row) {
    const auto &x = data.x[row], &y = data.y[row];
    ++sums.rows;
    for (int i = 0; i < d; ++i) {
      sums.x[i] += x[i];
      for (int j = 0; j < d; ++j) sums.xx[i * d + j] += x[i] * x[j];
      for (int o = 0; o < columns; ++o) sums.late[0].xy[i * columns + o] += x[i] * y[o];
    }
    for (int o = 0; o < columns; ++o) {
      sums.late[0].y[o] += y[o];
      sums.late[0].yy[o] += y[o] * y[o];
    }
  }
  return sums;
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
    const auto solved = Solve(KeyOf(fit), SumsOf(fit), SumsOf(held_out), options);
    ASSERT_TRUE(solved.ok()) << solved.status();
    ASSERT_EQ(solved->size(), 1u);
    const ridge::LayerMap& map = (*solved)[0].map;
    EXPECT_EQ(map.layer, 2);
    for (int o = 0; o < 6; ++o) {
      const std::vector<long double> want = BruteForce(fit, o, lambda);
      // f32 storage: 2^-24 relative, times a margin for the elimination.
      for (int i = 0; i < 9; ++i)
        EXPECT_NEAR(map.weight[o * 9 + i], want[i], 1e-6 * (1 + std::fabs(want[i])));
      EXPECT_NEAR(map.bias[o], want[9], 1e-5 * (1 + std::fabs(want[9])));
    }
  }
}

TEST(Solver, ChoosesThePenaltyThatHeldOutRowsLikeBestForKAndVApart) {
  // Few rows and much noise in V: it wants more penalty than K.
  const Data fit = MakeData(3, 40, 20, 4, 0.01, 60), held_out = MakeData(4, 300, 20, 4, 0.01, 60);
  const SolveOptions options;
  const auto solved = Solve(KeyOf(fit), SumsOf(fit), SumsOf(held_out), options);
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
  EXPECT_EQ((*solved)[0].k_penalty, penalty[0]);
  EXPECT_EQ((*solved)[0].v_penalty, penalty[1]);
  EXPECT_LT(penalty[0], penalty[1]);

  double energy[2] = {0, 0};  // around the fit's means
  for (int o = 0; o < 8; ++o) {
    double mean = 0;
    for (const auto& y : fit.y) mean += y[o] / static_cast<double>(fit.y.size());
    for (const auto& y : held_out.y) energy[o / 4] += (y[o] - mean) * (y[o] - mean);
  }
  EXPECT_NEAR((*solved)[0].k_residual, best[0] / energy[0], 1e-6 * best[0] / energy[0] + 1e-9);
  EXPECT_NEAR((*solved)[0].v_residual, best[1] / energy[1], 1e-6 * best[1] / energy[1]);
}

TEST(Solver, RecoversLinearTargets) {
  const Data fit = MakeData(5, 500, 6, 2, 0, 0), held_out = MakeData(6, 50, 6, 2, 0, 0);
  const auto solved = Solve(KeyOf(fit), SumsOf(fit), SumsOf(held_out), {});
  ASSERT_TRUE(solved.ok()) << solved.status();
  EXPECT_EQ((*solved)[0].k_penalty, 3e-5) << "nothing to smooth: the smallest penalty";
  EXPECT_EQ((*solved)[0].v_penalty, 3e-5);
  EXPECT_LT((*solved)[0].k_residual, 1e-6);
  base::Rng truth(99);
  for (int i = 0; i < 4 * 6; ++i) EXPECT_NEAR((*solved)[0].map.weight[i], Normal(truth), 0.02);
}

TEST(Solver, ThreadsDoNotChangeTheResult) {
  SumsKey key;
  key.layers = 8, key.split = 1, key.hidden = 5, key.kv_width = 2;
  const Data fit = MakeData(7, 60, 5, 2, 1, 1), held_out = MakeData(8, 60, 5, 2, 1, 1);
  Sums sums = SumsOf(fit), held = SumsOf(held_out);
  sums.late.resize(6, sums.late[0]);
  held.late.resize(6, held.late[0]);
  SolveOptions many;
  many.threads = 4;
  const auto one = Solve(key, sums, held, {}), four = Solve(key, sums, held, many);
  ASSERT_TRUE(one.ok() && four.ok());
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ((*four)[i].map.layer, i + 2);
    EXPECT_EQ((*four)[i].map.weight, (*one)[i].map.weight);
    EXPECT_EQ((*four)[i].map.bias, (*one)[i].map.bias);
  }
}

TEST(Solver, RefusesWhatCannotBeSolved) {
  const Data data = MakeData(9, 30, 4, 1, 1, 1);
  const SumsKey key = KeyOf(data);
  const auto reason = [&](const Sums& fit, const Sums& held_out) {
    const absl::Status status = Solve(key, fit, held_out, {}).status();
    const auto detail = base::GetErrorDetail(status);
    return detail ? detail->reason : status.ToString();
  };
  EXPECT_EQ(reason(Sums(key), SumsOf(data)), "FIT_NO_ROWS");
  EXPECT_EQ(reason(SumsOf(data), Sums(key)), "FIT_NO_ROWS");
  Data same = data;  // no variance at all: nothing to scale a penalty by
  for (auto& x : same.x) x = {1, 1, 1, 1};
  EXPECT_EQ(reason(SumsOf(same), SumsOf(data)), "FIT_SINGULAR");
}

}  // namespace
}  // namespace ridgefill::fit
