#include "engine/fit/samples.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/float16.h"
#include "engine/base/rng.h"
#include "engine/fit/matrix.h"
#include "engine/ridge/fill_plan.h"

namespace ridgefill::fit {
namespace {

float Norm(absl::Span<const float> row) {
  double square = 0;
  for (float value : row) square += double{value} * value;
  return static_cast<float>(std::sqrt(square));
}

std::vector<float> Norms(const RowFile& file, int split) {
  const int64_t d = file.key().hidden;
  std::vector<float> norms(file.tokens());
  for (int64_t row = 0; row < file.tokens(); ++row) norms[row] = Norm(file.Hidden(split).subspan(row * d, d));
  return norms;
}

// Scores of the gate for rows of h_S with a row length of `stride`: the best map of each.
std::vector<int> Choose(const ridge::Gate& gate, const float* x, int64_t rows, int64_t stride, int64_t d) {
  const int64_t maps = static_cast<int64_t>(gate.bias.size());
  using Stride = Eigen::OuterStride<>;
  const Eigen::Map<const RowMatrix, 0, Stride> inputs(x, rows, d, Stride(stride));
  const Eigen::Map<const RowMatrix> weight(gate.weight.data(), maps, d);
  RowMatrix scores = inputs * weight.transpose();
  scores.rowwise() += Eigen::Map<const Eigen::RowVectorXf>(gate.bias.data(), maps);
  std::vector<int> choice(rows);
  for (int64_t row = 0; row < rows; ++row) scores.row(row).maxCoeff(&choice[row]);
  return choice;
}

// Unit rows of z nearest to each of the unit centres, once: the sum of a centre's rows is its next direction.
void Improve(const RowMatrix& z, base::Rng& rng, RowMatrix& centres) {
  const RowMatrix scores = z * centres.transpose();
  RowMatrix sums = RowMatrix::Zero(centres.rows(), centres.cols());
  for (int64_t row = 0; row < z.rows(); ++row) {
    Eigen::Index best = 0;
    scores.row(row).maxCoeff(&best);
    sums.row(best) += z.row(row);
  }
  for (int64_t c = 0; c < centres.rows(); ++c) {
    const float norm = sums.row(c).norm();
    if (norm > 0) {
      centres.row(c) = sums.row(c) / norm;
    } else {  // nobody's: begins anew at some row
      centres.row(c) = z.row(static_cast<int64_t>(rng.NextBelow(z.rows())));
    }
  }
}

// Rows of unit length, each the farthest from those before it (Gonzalez 1985).
RowMatrix FarApart(const RowMatrix& z, int64_t count) {
  RowMatrix out(count, z.cols());
  out.row(0) = z.row(0);
  for (int64_t c = 1; c < count; ++c) {
    Eigen::Index farthest = 0;
    (z * out.topRows(c).transpose()).rowwise().maxCoeff().minCoeff(&farthest);
    out.row(c) = z.row(farthest);
  }
  return out;
}

// Row order[i] becomes row i, one cycle after the other: inputs are large and held once.
void Permute(std::vector<int64_t> order, Samples& samples) {
  const int64_t n = samples.inputs;
  const auto x = [&](int64_t row) { return samples.x.begin() + row * n; };
  std::vector<float> first(n);
  for (int64_t start = 0; start < static_cast<int64_t>(order.size()); ++start) {
    if (order[start] == start) continue;
    const RowRef first_ref = samples.rows[start];
    std::copy(x(start), x(start + 1), first.begin());
    int64_t to = start;
    while (order[to] != start) {
      const int64_t from = std::exchange(order[to], to);
      samples.rows[to] = samples.rows[from];
      std::copy(x(from), x(from + 1), x(to));
      to = from;
    }
    order[to] = to;
    samples.rows[to] = first_ref;
    std::copy(first.begin(), first.end(), x(to));
  }
}

}  // namespace

float OutlierThreshold(absl::Span<const RowFile* const> files, int split, float ratio) {
  std::vector<float> norms;
  for (const RowFile* file : files) {
    const std::vector<float> more = Norms(*file, split);
    norms.insert(norms.end(), more.begin() + 1, more.end());  // row 0 is an outlier by rule
  }
  RF_CHECK(!norms.empty());
  const auto middle = norms.begin() + static_cast<int64_t>(norms.size() / 2);
  std::nth_element(norms.begin(), middle, norms.end());
  return ratio * *middle;
}

Samples MakeSamples(absl::Span<const RowFile* const> files, int split, float threshold, bool previous_row) {
  Samples out;
  std::vector<std::vector<float>> all_norms;
  int64_t rows = 0;
  for (const RowFile* file : files) {
    all_norms.push_back(Norms(*file, split));
    out.inputs = int64_t{file->key().hidden} * (previous_row ? 2 : 1);
    for (int64_t row = 0; row < file->tokens(); ++row) {
      rows += ridge::IsOutlier(row, all_norms.back()[row], threshold) ? 0 : 1;
    }
  }
  out.rows.reserve(rows);
  out.x.reserve(rows * out.inputs);  // exactly: a vector that grows holds its values twice
  for (size_t i = 0; i < files.size(); ++i) {
    const RowFile* const file = files[i];
    const int64_t d = file->key().hidden;
    const std::vector<float>& norms = all_norms[i];
    const auto is_outlier = [&](int64_t row) { return ridge::IsOutlier(row, norms[row], threshold); };
    const absl::Span<const float> hidden = file->Hidden(split);
    for (int64_t row = 0; row < file->tokens(); ++row) {
      if (is_outlier(row)) continue;
      out.rows.push_back({file, static_cast<int32_t>(row)});
      out.x.insert(out.x.end(), hidden.begin() + row * d, hidden.begin() + (row + 1) * d);
      if (!previous_row) continue;
      const int64_t before = ridge::PreviousRow(row, is_outlier(row - 1));
      out.x.insert(out.x.end(), hidden.begin() + before * d, hidden.begin() + (before + 1) * d);
    }
  }
  out.ends = {static_cast<int64_t>(out.rows.size())};
  return out;
}

void Normalise(int64_t hidden, Samples& samples) {
  for (auto at = samples.x.begin(); at != samples.x.end(); at += hidden) {
    Eigen::Map<Eigen::VectorXf> x(&*at, hidden);
    x /= std::sqrt(x.squaredNorm() / static_cast<float>(hidden) + ridge::kInputEpsilon);
  }
}

void SortByMap(const ridge::Gate& gate, Samples& samples) {
  const int64_t maps = static_cast<int64_t>(gate.bias.size());
  const int64_t rows = static_cast<int64_t>(samples.rows.size()), n = samples.inputs;
  const int64_t d = static_cast<int64_t>(gate.weight.size()) / maps;
  const std::vector<int> choice = Choose(gate, samples.x.data(), rows, n, d);
  std::vector<int64_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return choice[a] < choice[b]; });
  samples.ends.assign(maps, 0);
  for (int map : choice) ++samples.ends[map];
  std::partial_sum(samples.ends.begin(), samples.ends.end(), samples.ends.begin());
  Permute(std::move(order), samples);
}

std::vector<float> Targets(absl::Span<const RowRef> rows, int layer) {
  std::vector<float> out;
  if (!rows.empty()) out.reserve(rows.size() * 2 * rows.front().file->key().kv_width);
  for (const RowRef& ref : rows) {
    const int64_t columns = 2 * int64_t{ref.file->key().kv_width};
    for (uint16_t bits : ref.file->Kv(layer).subspan(ref.row * columns, columns)) {
      out.push_back(base::BF16ToF32(bits));
    }
  }
  return out;
}

std::vector<float> Weights(absl::Span<const RowRef> rows, int layer) {
  std::vector<float> out;
  struct Total {
    double mass = 0;
    int64_t rows = 0;
  };
  std::map<const RowFile*, Total> totals;
  for (const RowRef& ref : rows) {
    const RowsKey& key = ref.file->key();
    out.push_back(0);
    if (ref.row + key.mass_distance >= ref.file->tokens()) continue;  // whatever the file says of it
    float& mass = out.back();
    for (int head = 0; head < key.heads_kv; ++head) {
      mass += ref.file->Mass(layer)[head * ref.file->tokens() + ref.row];
    }
    totals[ref.file].mass += mass;
    ++totals[ref.file].rows;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const Total& total = totals[rows[i].file];
    const double mean = total.rows > 0 ? total.mass / static_cast<double>(total.rows) : 0;
    out[i] = mean > 0 ? std::min(static_cast<float>(out[i] / mean), kMaxWeight) : 0;
  }
  return out;
}

ridge::Gate FindClusters(const Samples& samples, int64_t hidden, int maps, uint64_t seed) {
  constexpr int kRounds = 15;
  const int64_t rows = static_cast<int64_t>(samples.rows.size());
  const int64_t step = std::max<int64_t>(1, (rows + kClusterRows - 1) / kClusterRows), count = rows / step;
  RF_CHECK(count >= maps);
  RowMatrix z(count, hidden);
  for (int64_t i = 0; i < count; ++i) {
    z.row(i) = Eigen::Map<const Eigen::RowVectorXf>(samples.x.data() + i * step * samples.inputs, hidden);
  }
  const Eigen::RowVectorXf mean = z.colwise().mean();
  z.rowwise() -= mean;
  z.rowwise().normalize();
  base::Rng rng(seed);
  RowMatrix centres(maps, hidden);
  for (int c = 0; c < maps; ++c) centres.row(c) = z.row(static_cast<int64_t>(rng.NextBelow(count)));
  for (int round = 0; round < kRounds; ++round) Improve(z, rng, centres);
  ridge::Gate gate;
  gate.weight.assign(centres.data(), centres.data() + centres.size());
  const Eigen::VectorXf bias = -(centres * mean.transpose());
  gate.bias.assign(bias.data(), bias.data() + bias.size());
  return gate;
}

std::vector<std::vector<int>> MixtureGroups(const ridge::Gate& gate, uint64_t seed) {
  constexpr int kRounds = 30;
  const int64_t maps = static_cast<int64_t>(gate.bias.size());
  const int64_t d = static_cast<int64_t>(gate.weight.size()) / std::max<int64_t>(1, maps);
  RowMatrix directions = Eigen::Map<const RowMatrix>(gate.weight.data(), maps, d);
  std::vector<int> all(maps);
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int>> mixtures;
  base::Rng rng(seed);
  for (int64_t count = maps / 4; count >= kCoarsestMixture; count /= 4) {
    RowMatrix centres = FarApart(directions, count);
    for (int round = 0; round < kRounds; ++round) Improve(directions, rng, centres);
    // Without gaps, and of the maps rather than of the next finer groups.
    std::vector<int> number(count, -1), group;
    int used = 0;
    for (int64_t i = 0; i < directions.rows(); ++i) {
      Eigen::Index best = 0;
      (directions.row(i) * centres.transpose()).maxCoeff(&best);
      if (number[best] < 0) number[best] = used++;
      group.push_back(number[best]);
    }
    const std::vector<int>& finer = mixtures.empty() ? all : mixtures.front();
    std::vector<int> by_map;
    by_map.reserve(finer.size());
    for (int finer_group : finer) by_map.push_back(group[finer_group]);
    RowMatrix next(used, d);
    for (int64_t c = 0; c < count; ++c) {
      if (number[c] >= 0) next.row(number[c]) = centres.row(c);
    }
    directions = std::move(next);
    mixtures.insert(mixtures.begin(), std::move(by_map));
  }
  return mixtures;
}

}  // namespace ridgefill::fit
