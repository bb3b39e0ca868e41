#include "engine/fit/split_fitter.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/fit/held_out_report.h"
#include "engine/ridge/device_maps.h"

namespace ridgefill::fit {

int LayersAtOnce(const Samples& samples, int64_t kv_width, int64_t groups, int threads) {
  const auto maps = static_cast<int64_t>(samples.ends.size());
  const int64_t n = samples.inputs, outputs = 2 * kv_width;
  // Of each map and group fit and held-out rows, and two totals; a centred system, its factor and a product
  // beside them; the maps so far, what they leave over, and those of the next penalty.
  const int64_t sums = 2 * (maps + groups + 1);
  const int64_t values = sums * (n * n + n * outputs) + 3 * n * n + (3 * maps + 2) * n * outputs;
  const int64_t bytes = std::max<int64_t>(1, values * static_cast<int64_t>(sizeof(double)));
  return static_cast<int>(std::clamp<int64_t>(kSolveBytes / bytes, 1, std::max(1, threads)));
}

absl::StatusOr<ridge::MapSetManifest> SplitFitter::Run() {
  const FitOptions& options = job_.options;
  manifest_.model = job_.key.model;
  manifest_.layers = job_.key.layers;
  manifest_.hidden = job_.key.hidden;
  manifest_.kv_width = job_.key.kv_width;
  manifest_.split = job_.split;
  manifest_.dtype = options.dtype;
  manifest_.mixture = options.mixture;
  manifest_.previous_row = options.previous_row;
  manifest_.normalised = options.normalise;
  manifest_.tail_default = options.tail_default;
  manifest_.tail_minimum = options.tail_minimum;
  manifest_.min_bulk = options.min_bulk;
  manifest_.outlier_ratio = options.outlier_ratio;
  manifest_.fit_corpus = job_.corpus;
  manifest_.fit_weighted = options.weigh_rows;
  RF_RETURN_IF_ERROR(Solve());
  RF_RETURN_IF_ERROR(Store());
  RF_RETURN_IF_ERROR(Report());
  return manifest_;
}

absl::Status SplitFitter::Solve() {
  const FitOptions& options = job_.options;
  manifest_.outlier_threshold = options.outlier_threshold;
  if (options.outlier_threshold == 0) {
    std::vector<const RowFile*> all = job_.fit;
    all.insert(all.end(), job_.held_out.begin(), job_.held_out.end());
    manifest_.outlier_threshold = OutlierThreshold(all, job_.split, options.outlier_ratio);
  }
  Samples fit = MakeSamples(job_.fit, job_.split, manifest_.outlier_threshold, options.previous_row);
  Samples held_out =
      MakeSamples(job_.held_out, job_.split, manifest_.outlier_threshold, options.previous_row);
  if (options.normalise) {
    Normalise(job_.key.hidden, fit);
    Normalise(job_.key.hidden, held_out);
  }
  manifest_.fit_rows = static_cast<int64_t>(fit.rows.size());
  SolveOptions solve;
  if (options.mixture > 1) {
    RF_RETURN_IF_ERROR(Cluster(fit, held_out));
    solve.groups = MixtureGroups(gate_, options.seed);
  }
  fit_rows_ = fit.rows;
  held_out_rows_ = held_out.rows;
  const int first = job_.split + 1;
  int64_t groups = 0;
  for (const std::vector<int>& group : solve.groups) {
    groups += 1 + *std::max_element(group.begin(), group.end());
  }
  const int threads = job_.model.backend().capabilities().threads;
  const int step = LayersAtOnce(fit, job_.key.kv_width, groups, threads);
  RF_ASSIGN_OR_RETURN(const auto solver,
                      Solver::Create(job_.model.backend(), std::move(fit), std::move(held_out), solve));
  for (int layer = first; layer < job_.key.layers; layer += step) {
    const int end = std::min(layer + step, job_.key.layers);
    RF_RETURN_IF_ERROR(SolveLayers(*solver, layer, end));
    RF_RETURN_IF_ERROR(progress(FitStage::kSolve, end - first, job_.key.layers - first));
  }
  return absl::OkStatus();
}

absl::Status SplitFitter::Cluster(Samples& fit, Samples& held_out) {
  const int maps = job_.options.mixture;
  if (static_cast<int>(fit.rows.size()) < maps) {
    return base::Error(absl::StatusCode::kInvalidArgument, "FIT_MIXTURE",
                       absl::StrCat("a mixture of ", maps, " maps from ", fit.rows.size(), " rows"));
  }
  gate_ = FindClusters(fit, job_.key.hidden, maps, job_.options.seed);
  SortByMap(gate_, fit);
  SortByMap(gate_, held_out);
  return absl::OkStatus();
}

// Layers [begin, end), LayersAtOnce of them: summed one after the other on the backend, solved each on a
// thread of its own.
absl::Status SplitFitter::SolveLayers(Solver& solver, int begin, int end) {
  std::vector<std::unique_ptr<LayerSums>> sums;
  for (int layer = begin; layer < end; ++layer) {
    RF_ASSIGN_OR_RETURN(auto some, solver.Sum(Layer(fit_rows_, layer), Layer(held_out_rows_, layer)));
    sums.push_back(std::move(some));
  }
  std::vector<absl::StatusOr<SolvedLayer>> solved(sums.size(), absl::InternalError("not solved"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < sums.size(); ++i) {
    threads.emplace_back([&, i] { solved[i] = solver.Solve(*sums[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < solved.size(); ++i) {
    RF_RETURN_IF_ERROR(solved[i].status());
    solved_.push_back(*std::move(solved[i]));
    solved_.back().map.layer = begin + static_cast<int>(i);
  }
  return absl::OkStatus();
}

LayerSamples SplitFitter::Layer(const std::vector<RowRef>& rows, int layer) const {
  return {Targets(rows, layer), job_.options.weigh_rows ? Weights(rows, layer) : std::vector<float>()};
}

absl::Status SplitFitter::Store() {
  std::vector<ridge::LayerMap> maps;
  maps.reserve(solved_.size());
  for (const SolvedLayer& layer : solved_) maps.push_back(layer.map);
  return ridge::SaveMapSet(job_.folder, manifest_, maps, gate_);
}

// From the stored file: what bf16 or int8 lost is in the figures.
absl::Status SplitFitter::Report() {
  RF_ASSIGN_OR_RETURN(const auto stored, ridge::MapSet::Load(job_.folder));
  RF_ASSIGN_OR_RETURN(const auto maps, ridge::DeviceMaps::Load(*stored, job_.model.backend()));
  const int64_t total = static_cast<int64_t>(job_.held_out.size());
  ReportOptions options;
  options.chunk_rows = job_.options.chunk_rows;
  options.progress = [&](int64_t done) { return progress(FitStage::kReport, done, total); };
  RF_ASSIGN_OR_RETURN(manifest_.report, HeldOutReport(job_.model, *maps, job_.held_out, options));
  for (size_t i = 0; i < solved_.size(); ++i) {
    ridge::LayerReport& report = manifest_.report[i];
    RF_CHECK(report.layer == solved_[i].map.layer);
    report.k_penalty = solved_[i].k.penalty;
    report.v_penalty = solved_[i].v.penalty;
    report.k_shrinkage = solved_[i].k.shrinkage;
    report.v_shrinkage = solved_[i].v.shrinkage;
    report.k_residual = solved_[i].k.residual;
    report.v_residual = solved_[i].v.residual;
  }
  RF_RETURN_IF_ERROR(Store());
  RF_ASSIGN_OR_RETURN(const auto reread, ridge::MapSet::Load(job_.folder));
  manifest_ = reread->manifest();
  return absl::OkStatus();
}

}  // namespace ridgefill::fit
