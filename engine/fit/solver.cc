#include "engine/fit/solver.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/fit/matrix.h"
#include "engine/runtime/host_bytes.h"

namespace ridgefill::fit {
namespace {

constexpr int64_t kBlockRows = 4096;  // beyond, f32 products would lose digits
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Weighted sums over some rows, x around the fit's mean.
struct Moments {
  double n = 0;
  Vector x, y, yy;
  Matrix xx, xy;

  Moments() = default;
  Moments(int64_t inputs, int64_t outputs)
      : x(Vector::Zero(inputs)),
        y(Vector::Zero(outputs)),
        yy(Vector::Zero(outputs)),
        xx(Matrix::Zero(inputs, inputs)),
        xy(Matrix::Zero(inputs, outputs)) {}

  void Add(const Moments& more) {
    n += more.n;
    x += more.x, y += more.y, yy += more.yy, xx += more.xx, xy += more.xy;
  }
};

struct Sums final : LayerSums {
  std::vector<Moments> fit, held_out;  // by map
};

// Sums rows up on a backend, a block at a time.
class Summer {
 public:
  static absl::StatusOr<std::unique_ptr<Summer>> Create(kernels::Backend& backend, int64_t inputs) {
    auto out = std::make_unique<Summer>(backend);
    RF_ASSIGN_OR_RETURN(out->x_, backend.Allocate(kernels::DType::kF32, {kBlockRows, inputs}));
    return out;
  }
  explicit Summer(kernels::Backend& backend) : backend_(backend), stream_(backend.NewStream()) {}

  absl::StatusOr<std::vector<Moments>> Parts(const Samples& samples, const LayerSamples& layer) {
    const int64_t outputs = static_cast<int64_t>(layer.y.size() / std::max<size_t>(1, samples.rows.size()));
    RF_RETURN_IF_ERROR(Allocate(samples.inputs, outputs));
    std::vector<Moments> parts;
    int64_t begin = 0;
    for (int64_t end : samples.ends) {
      parts.emplace_back(samples.inputs, outputs);
      for (int64_t at = begin; at < end; at += kBlockRows) {
        RF_RETURN_IF_ERROR(AddBlock(samples, layer, at, std::min(kBlockRows, end - at), parts.back()));
      }
      begin = end;
    }
    return parts;
  }

 private:
  absl::Status Allocate(int64_t inputs, int64_t outputs) {
    if (y_.view().rank == 2 && y_.view().dim(1) == outputs) return absl::OkStatus();
    RF_ASSIGN_OR_RETURN(y_, backend_.Allocate(kernels::DType::kF32, {kBlockRows, outputs}));
    RF_ASSIGN_OR_RETURN(product_,
                        backend_.Allocate(kernels::DType::kF32, {inputs * std::max(inputs, outputs)}));
    return absl::OkStatus();
  }

  // Each row times the root of its weight.
  absl::Status AddBlock(const Samples& samples, const LayerSamples& layer, int64_t at, int64_t rows,
                        Moments& to) {
    const int64_t inputs = to.x.size(), outputs = to.y.size();
    RowMatrix x = Eigen::Map<const RowMatrix>(samples.x.data() + at * inputs, rows, inputs);
    RowMatrix y = Eigen::Map<const RowMatrix>(layer.y.data() + at * outputs, rows, outputs);
    Eigen::VectorXf root = Eigen::VectorXf::Ones(rows);
    if (!layer.weights.empty()) {
      root = Eigen::Map<const Eigen::VectorXf>(layer.weights.data() + at, rows).cwiseSqrt();
    }
    x.array().colwise() *= root.array();
    y.array().colwise() *= root.array();
    to.n += root.cast<double>().squaredNorm();
    to.x += x.cast<double>().transpose() * root.cast<double>();
    to.y += y.cast<double>().transpose() * root.cast<double>();
    to.yy += y.cast<double>().colwise().squaredNorm().transpose();
    const kernels::TensorView x_view = x_.view().Rows(0, rows), y_view = y_.view().Rows(0, rows);
    RF_RETURN_IF_ERROR(Upload(x, x_view));
    RF_RETURN_IF_ERROR(Upload(y, y_view));
    RF_RETURN_IF_ERROR(AddProduct(x_view, x_view, to.xx));
    return AddProduct(x_view, y_view, to.xy);
  }

  absl::Status Upload(const RowMatrix& from, const kernels::TensorView& to) {
    return backend_.CopyFromHost(*stream_, runtime::HostBytes(absl::MakeConstSpan(from.data(), from.size())),
                                 to);
  }

  absl::Status AddProduct(const kernels::TensorView& a, const kernels::TensorView& b, Matrix& to) {
    const kernels::TensorView product = product_.view().Rows(0, to.size()).Reshape({to.rows(), to.cols()});
    RowMatrix host(to.rows(), to.cols());
    RF_RETURN_IF_ERROR(backend_.Gram(*stream_, {a, b, product}));
    RF_RETURN_IF_ERROR(
        backend_.CopyToHost(*stream_, product, runtime::HostBytes(absl::MakeSpan(host.data(), host.size()))));
    RF_RETURN_IF_ERROR(backend_.Synchronize(*stream_));
    to += host.cast<double>();
    return absl::OkStatus();
  }

  kernels::Backend& backend_;
  std::unique_ptr<kernels::Stream> stream_;
  kernels::Tensor x_, y_;    // f32 [kBlockRows, inputs], [kBlockRows, outputs]
  kernels::Tensor product_;  // f32 [inputs * max(inputs, outputs)]
};

// Around the rows' own means.
Matrix CentredXx(const Moments& m) { return m.xx - m.x * m.x.transpose() / m.n; }
Matrix CentredXy(const Moments& m) { return m.xy - m.x * m.y.transpose() / m.n; }

// y = w^T x + b.
struct Affine {
  Matrix w;  // [inputs, outputs]
  Vector b;
};

// Weighted squared errors per output.
Vector Errors(const Moments& m, const Affine& map) {
  const Matrix xxw = m.xx * map.w;
  const Vector wx = map.w.transpose() * m.x;
  Vector errors = m.yy - 2 * map.b.cwiseProduct(m.y) + 2 * map.b.cwiseProduct(wx) + m.n * map.b.cwiseAbs2();
  errors += (map.w.cwiseProduct(xxw) - 2 * map.w.cwiseProduct(m.xy)).colwise().sum().transpose();
  return errors;
}

// The bias that puts the rows' mean right.
Affine WithBias(const Moments& m, Matrix w) {
  Vector b = (m.y - w.transpose() * m.x) / m.n;
  return {std::move(w), std::move(b)};
}

class RidgeSolver final : public Solver {
 public:
  RidgeSolver(std::unique_ptr<Summer> summer, Samples fit, Samples held_out, const SolveOptions& options)
      : summer_(std::move(summer)), fit_(std::move(fit)), held_out_(std::move(held_out)), options_(options) {
    const int64_t inputs = fit_.inputs;
    Eigen::Map<RowMatrix> x(fit_.x.data(), static_cast<int64_t>(fit_.rows.size()), inputs);
    Eigen::Map<RowMatrix> held(held_out_.x.data(), static_cast<int64_t>(held_out_.rows.size()), inputs);
    origin_ = x.cast<double>().colwise().mean().transpose();
    x.rowwise() -= origin_.cast<float>().transpose();
    held.rowwise() -= origin_.cast<float>().transpose();
    origin_ = origin_.cast<float>().cast<double>();
  }

  absl::StatusOr<std::unique_ptr<LayerSums>> Sum(const LayerSamples& fit,
                                                 const LayerSamples& held_out) override {
    auto sums = std::make_unique<Sums>();
    RF_ASSIGN_OR_RETURN(sums->fit, summer_->Parts(fit_, fit));
    RF_ASSIGN_OR_RETURN(sums->held_out, summer_->Parts(held_out_, held_out));
    return sums;
  }

  absl::StatusOr<SolvedLayer> Solve(const LayerSums& sums) const override {
    const std::vector<Moments>& parts = static_cast<const Sums&>(sums).fit;
    const std::vector<Moments>& held_parts = static_cast<const Sums&>(sums).held_out;
    const Moments all = Total(parts), held = Total(held_parts);
    if (!(all.n > 0) || !(held.n > 0)) {
      return base::Error(absl::StatusCode::kInvalidArgument, "FIT_NO_ROWS",
                         "no row of the documents is attended to from far enough behind: weighing rows by "
                         "attention needs longer documents");
    }
    SolvedLayer out;
    Affine global;
    RF_RETURN_IF_ERROR(SolveGlobal(all, held, global, out));
    std::vector<Affine> maps(parts.size(), global);
    if (parts.size() > 1) {
      const double scale = Scale(CentredXx(all));
      for (const std::vector<int>& group : options_.groups) {
        Refine(group, Merge(parts, group), Merge(held_parts, group), scale, maps, out);
      }
      std::vector<int> each(parts.size());
      std::iota(each.begin(), each.end(), 0);
      Refine(each, parts, held_parts, scale, maps, out);
    }
    RelativeToVariance(held, out);
    for (const Affine& map : maps) Append(map, out.map);
    return out;
  }

 private:
  static Moments Total(const std::vector<Moments>& parts) {
    Moments total = parts.front();
    for (size_t i = 1; i < parts.size(); ++i) total.Add(parts[i]);
    return total;
  }

  static double Scale(const Matrix& centred) { return centred.trace() / static_cast<double>(centred.rows()); }

  // One map of all rows, K and V at the penalty that is best for each.
  absl::Status SolveGlobal(const Moments& all, const Moments& held, Affine& best, SolvedLayer& out) const {
    const Matrix xx = CentredXx(all), xy = CentredXy(all);
    const int64_t kv = xy.cols() / 2;
    best = {Matrix::Zero(xx.rows(), 2 * kv), Vector::Zero(2 * kv)};
    out.k.residual = out.v.residual = kInfinity;
    for (double penalty : options_.penalties) {
      Matrix system = xx;
      system.diagonal().array() += penalty * Scale(xx);
      const Eigen::LLT<Matrix> factor(system);
      if (factor.info() != Eigen::Success) continue;
      const Affine map = WithBias(all, factor.solve(xy));
      const Vector errors = Errors(held, map);
      const auto keep = [&](int64_t begin, SolvedHalf& half) {
        const double error = errors.segment(begin, kv).sum();
        if (!(error < half.residual)) return;
        half.residual = error;
        half.penalty = penalty;
        best.w.middleCols(begin, kv) = map.w.middleCols(begin, kv);
        best.b.segment(begin, kv) = map.b.segment(begin, kv);
      };
      keep(0, out.k);
      keep(kv, out.v);
    }
    if (out.k.residual < kInfinity && out.v.residual < kInfinity) return absl::OkStatus();
    return base::Error(absl::StatusCode::kFailedPrecondition, "FIT_SINGULAR",
                       absl::StrCat("no penalty gives a finite map from ", fit_.rows.size(), " rows"));
  }

  static std::vector<Moments> Merge(const std::vector<Moments>& parts, const std::vector<int>& group) {
    std::vector<Moments> merged(1 + *std::max_element(group.begin(), group.end()),
                                Moments(parts[0].x.size(), parts[0].y.size()));
    for (size_t i = 0; i < parts.size(); ++i) merged[group[i]].Add(parts[i]);
    return merged;
  }

  // Each group's ridge on what its present map leaves over, towards zero; kept where held-out rows are better
  // off. `group` is each map's, the sums are by group.
  void Refine(const std::vector<int>& group, const std::vector<Moments>& fit,
              const std::vector<Moments>& held, double scale, std::vector<Affine>& maps,
              SolvedLayer& out) const {
    const int64_t kv = maps[0].b.size() / 2;
    std::vector<Affine> present(fit.size());
    for (size_t i = 0; i < group.size(); ++i) present[group[i]] = maps[i];
    std::vector<Matrix> left;  // of centred inputs and targets, by group: the same for each shrinkage
    left.reserve(fit.size());
    for (size_t i = 0; i < fit.size(); ++i) left.push_back(LeftOver(fit[i], present[i]));
    out.k.shrinkage = out.v.shrinkage = 0;
    for (double shrinkage : options_.shrinkages) {
      std::vector<Affine> finer;
      Vector errors = Vector::Zero(2 * kv);
      for (size_t i = 0; i < fit.size(); ++i) {
        finer.push_back(Difference(fit[i], left[i], present[i], shrinkage * scale));
        errors += Errors(held[i], finer.back());
      }
      const auto keep = [&](int64_t begin, SolvedHalf& half) {
        const double error = errors.segment(begin, kv).sum();
        if (!(error < half.residual)) return;
        half.residual = error;
        half.shrinkage = shrinkage;
        for (size_t i = 0; i < maps.size(); ++i) {
          maps[i].w.middleCols(begin, kv) = finer[group[i]].w.middleCols(begin, kv);
          maps[i].b.segment(begin, kv) = finer[group[i]].b.segment(begin, kv);
        }
      };
      keep(0, out.k);
      keep(kv, out.v);
    }
  }

  static Matrix LeftOver(const Moments& part, const Affine& coarser) {
    if (!(part.n > 0)) return {};
    return CentredXy(part) - CentredXx(part) * coarser.w;
  }

  static Affine Difference(const Moments& part, const Matrix& left, const Affine& coarser, double penalty) {
    if (!(part.n > 0)) return coarser;
    Matrix system = CentredXx(part);
    system.diagonal().array() += penalty;
    const Eigen::LLT<Matrix> factor(system);
    if (factor.info() != Eigen::Success) return coarser;
    return WithBias(part, coarser.w + factor.solve(left));
  }

  static void RelativeToVariance(const Moments& held, SolvedLayer& out) {
    const Vector energy = held.yy - held.y.cwiseAbs2() / held.n;
    const int64_t kv = energy.size() / 2;
    out.k.residual /= energy.head(kv).sum();
    out.v.residual /= energy.tail(kv).sum();
  }

  // One row of the map per output; the bias for inputs that are not centred.
  void Append(const Affine& affine, ridge::LayerMap& map) const {
    const Vector bias = affine.b - affine.w.transpose() * origin_;
    for (int64_t column = 0; column < affine.w.cols(); ++column) {
      for (int64_t i = 0; i < affine.w.rows(); ++i)
        map.weight.push_back(static_cast<float>(affine.w(i, column)));
      map.bias.push_back(static_cast<float>(bias(column)));
    }
  }

  std::unique_ptr<Summer> summer_;
  Samples fit_, held_out_;  // x around origin_
  const SolveOptions options_;
  Vector origin_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Solver>> Solver::Create(kernels::Backend& backend, Samples fit,
                                                       Samples held_out, const SolveOptions& options) {
  if (fit.rows.empty() || held_out.rows.empty()) {
    return base::Error(absl::StatusCode::kInvalidArgument, "FIT_NO_ROWS",
                       absl::StrCat("a fit needs rows and held-out rows, there are ", fit.rows.size(),
                                    " and ", held_out.rows.size()));
  }
  RF_CHECK(fit.inputs == held_out.inputs && fit.ends.size() == held_out.ends.size());
  for (const std::vector<int>& group : options.groups) RF_CHECK(group.size() == fit.ends.size());
  RF_ASSIGN_OR_RETURN(auto summer, Summer::Create(backend, fit.inputs));
  return std::make_unique<RidgeSolver>(std::move(summer), std::move(fit), std::move(held_out), options);
}

}  // namespace ridgefill::fit
