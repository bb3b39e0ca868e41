#include "engine/fit/solver.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace ridgefill::fit {
namespace {

using Matrix = Eigen::MatrixXd;
using Vector = Eigen::VectorXd;
using RowMajorView = Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
using VectorView = Eigen::Map<const Vector>;

VectorView View(const std::vector<double>& v) { return VectorView(v.data(), static_cast<int64_t>(v.size())); }

// Sums of one layer moved to another origin: x' = x - x0, y' = y - y0.
struct Moments {
  Matrix xy;  // sum x' y'^T  [d, 2 * kv]
  Vector yy;  // sum y'^2     [2 * kv]
};

// sum (x - x0)(x - x0)^T
Matrix InputMoments(const Sums& sums, const Vector& x0) {
  const int64_t d = x0.size();
  const double n = static_cast<double>(sums.rows);
  const VectorView x = View(sums.x);
  Matrix xx = RowMajorView(sums.xx.data(), d, d);
  xx.noalias() -= x0 * x.transpose();
  xx.noalias() -= x * x0.transpose();
  xx.noalias() += n * x0 * x0.transpose();
  return 0.5 * (xx + xx.transpose());
}

Moments TargetMoments(const Sums& sums, size_t layer, const Vector& x0, const Vector& y0) {
  const LayerSums& late = sums.late[layer];
  const double n = static_cast<double>(sums.rows);
  const VectorView x = View(sums.x), y = View(late.y);
  Moments out;
  out.xy = RowMajorView(late.xy.data(), x0.size(), y0.size());
  out.xy.noalias() -= x0 * y.transpose();
  out.xy.noalias() -= x * y0.transpose();
  out.xy.noalias() += n * x0 * y0.transpose();
  out.yy = View(late.yy) - 2 * y0.cwiseProduct(y) + n * y0.cwiseAbs2();
  return out;
}

// sum ||y' - W^T x'||^2 per column.
Vector SquaredErrors(const Matrix& xx, const Moments& moments, const Matrix& w) {
  const Matrix gw = xx * w;
  return moments.yy + w.cwiseProduct(gw - 2 * moments.xy).colwise().sum().transpose();
}

void ForEachLayer(size_t layers, int threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t i = next++; i < layers; i = next++) work(i);
  };
  std::vector<std::thread> helpers;
  const int wanted = std::min(threads, static_cast<int>(layers));
  for (int i = 1; i < wanted; ++i) helpers.emplace_back(run);
  run();
  for (std::thread& helper : helpers) helper.join();
}

// K or V of one layer: the best solution so far.
struct Half {
  double error = std::numeric_limits<double>::infinity();
  double penalty = 0;
  Matrix w;  // [d, kv]
};

struct LayerProblem {
  Vector y_mean;
  Matrix xy;         // centred, of the fit rows
  Moments held_out;  // around the fit's means
  Half k, v;
};

class Solver {
 public:
  Solver(const SumsKey& key, const Sums& fit, const Sums& held_out, int threads)
      : key_(key),
        threads_(threads),
        x_mean_(View(fit.x) / static_cast<double>(fit.rows)),
        gram_(InputMoments(fit, x_mean_)),
        held_out_gram_(InputMoments(held_out, x_mean_)),
        layers_(fit.late.size()) {
    ForEachLayer(layers_.size(), threads_, [&](size_t i) {
      LayerProblem& layer = layers_[i];
      layer.y_mean = View(fit.late[i].y) / static_cast<double>(fit.rows);
      layer.xy = TargetMoments(fit, i, x_mean_, layer.y_mean).xy;
      layer.held_out = TargetMoments(held_out, i, x_mean_, layer.y_mean);
    });
  }

  // Does nothing when the system is not positive definite.
  void Try(double penalty) {
    Matrix system = gram_;
    system.diagonal().array() += penalty * gram_.trace() / static_cast<double>(gram_.rows());
    const Eigen::LLT<Matrix> factor(system);
    if (factor.info() != Eigen::Success) return;
    ForEachLayer(layers_.size(), threads_, [&](size_t i) {
      LayerProblem& layer = layers_[i];
      const Matrix w = factor.solve(layer.xy);
      const Vector errors = SquaredErrors(held_out_gram_, layer.held_out, w);
      Keep(penalty, errors.head(key_.kv_width).sum(), w.leftCols(key_.kv_width), layer.k);
      Keep(penalty, errors.tail(key_.kv_width).sum(), w.rightCols(key_.kv_width), layer.v);
    });
  }

  bool Solved(size_t i) const { return layers_[i].k.w.size() > 0 && layers_[i].v.w.size() > 0; }

  SolvedLayer Result(size_t i) const {
    const LayerProblem& layer = layers_[i];
    SolvedLayer out;
    out.map.layer = key_.split + 1 + static_cast<int>(i);
    Append(layer.k.w, layer.y_mean.head(key_.kv_width), out.map);
    Append(layer.v.w, layer.y_mean.tail(key_.kv_width), out.map);
    out.k_penalty = layer.k.penalty;
    out.v_penalty = layer.v.penalty;
    out.k_residual = layer.k.error / layer.held_out.yy.head(key_.kv_width).sum();
    out.v_residual = layer.v.error / layer.held_out.yy.tail(key_.kv_width).sum();
    return out;
  }

 private:
  static void Keep(double penalty, double error, const Eigen::Ref<const Matrix>& w, Half& half) {
    if (!(error < half.error)) return;
    half.error = error;
    half.penalty = penalty;
    half.w = w;
  }

  // One row of the map per column of w.
  void Append(const Matrix& w, const Vector& y_mean, ridge::LayerMap& map) const {
    const Vector bias = y_mean - w.transpose() * x_mean_;
    for (int64_t column = 0; column < w.cols(); ++column) {
      for (int64_t i = 0; i < w.rows(); ++i) map.weight.push_back(static_cast<float>(w(i, column)));
      map.bias.push_back(static_cast<float>(bias(column)));
    }
  }

  const SumsKey& key_;
  const int threads_;
  const Vector x_mean_;
  const Matrix gram_;           // centred, of the fit rows
  const Matrix held_out_gram_;  // around x_mean_
  std::vector<LayerProblem> layers_;
};

}  // namespace

absl::StatusOr<std::vector<SolvedLayer>> Solve(const SumsKey& key, const Sums& fit, const Sums& held_out,
                                               const SolveOptions& options) {
  if (fit.rows <= 0 || held_out.rows <= 0) {
    return base::Error(
        absl::StatusCode::kInvalidArgument, "FIT_NO_ROWS",
        absl::StrCat("a fit needs rows and held-out rows, there are ", fit.rows, " and ", held_out.rows));
  }
  Solver solver(key, fit, held_out, options.threads);
  for (double penalty : options.penalties) solver.Try(penalty);
  std::vector<SolvedLayer> out;
  for (size_t i = 0; i < fit.late.size(); ++i) {
    if (!solver.Solved(i)) {
      return base::Error(absl::StatusCode::kFailedPrecondition, "FIT_SINGULAR",
                         absl::StrCat("no penalty gives a finite map of layer ", key.split + 1 + i, " from ",
                                      fit.rows, " rows"));
    }
    out.push_back(solver.Result(i));
  }
  return out;
}

}  // namespace ridgefill::fit
