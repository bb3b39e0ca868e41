// Rows of several documents as the inputs and targets of one split's maps. Pure functions over row files,
// which must outlive what is made of them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/fit/row_file.h"
#include "engine/ridge/map_set.h"

namespace ridgefill::fit {

struct RowRef {
  const RowFile* file = nullptr;
  int32_t row = 0;
};

// Rows side by side that take the same map of a mixture.
struct Samples {
  int64_t inputs = 0;
  std::vector<RowRef> rows;   // [n]
  std::vector<int64_t> ends;  // [mixture]: the rows of map m are [ends[m - 1], ends[m])
  std::vector<float> x;       // [n, inputs]: h_S, then the previous row's where that is an input
};

// `ratio` times the median of ||h_S|| over all rows but the first of each document.
float OutlierThreshold(absl::Span<const RowFile* const> files, int split, float ratio);

// All rows that are no outliers, as one map.
Samples MakeSamples(absl::Span<const RowFile* const> files, int split, float threshold, bool previous_row);
// Divides each row of h_S by its root mean square, the previous row's apart.
void Normalise(int64_t hidden, Samples& samples);
// Puts them in the order of a gate's choice, in place.
void SortByMap(const ridge::Gate& gate, Samples& samples);

// One late layer's targets of some rows, K then V: [n, 2 * kv_width].
std::vector<float> Targets(absl::Span<const RowRef> rows, int layer);
// What later rows attend to each row in that layer, heads together: of mean 1 over a document's rows that
// have later ones, at most kMaxWeight; 0 for those that have none. [n]
std::vector<float> Weights(absl::Span<const RowRef> rows, int layer);
inline constexpr float kMaxWeight = 200;

// Directions of `maps` clusters of the samples' h_S around their mean: spherical k-means (Dhillon and Modha
// 2001) on at most kClusterRows of them. The same samples and seed give the same gate.
ridge::Gate FindClusters(const Samples& samples, int64_t hidden, int maps, uint64_t seed);
inline constexpr int64_t kClusterRows = 32768;

// Coarser mixtures of a gate's maps, coarsest first: by map, the group of near directions that it is in, each
// mixture a quarter of the next finer one, down to kCoarsestMixture. Groups are numbered from 0 without a
// gap; maps of one group are in one group of the coarser mixtures too.
std::vector<std::vector<int>> MixtureGroups(const ridge::Gate& gate, uint64_t seed);
inline constexpr int kCoarsestMixture = 4;

}  // namespace ridgefill::fit
