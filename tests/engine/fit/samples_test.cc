#include "engine/fit/samples.h"

#include <gmock/gmock.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"

#include "engine/base/rng.h"

namespace ridgefill::fit {
namespace {

// Unit directions in `clusters` narrow bundles, one after the other in turn.
ridge::Gate Bundles(int maps, int clusters, int d) {
  base::Rng rng(3);
  std::vector<std::vector<float>> centres(clusters, std::vector<float>(d));
  for (auto& centre : centres) {
    for (float& value : centre) value = static_cast<float>(rng.NextDouble() - 0.5);
  }
  ridge::Gate gate;
  for (int map = 0; map < maps; ++map) {
    std::vector<float> direction = centres[map % clusters];
    float norm = 0;
    for (float& value : direction) {
      value += 0.02f * static_cast<float>(rng.NextDouble() - 0.5);
      norm += value * value;
    }
    for (float value : direction) gate.weight.push_back(value / std::sqrt(norm));
    gate.bias.push_back(0);
  }
  return gate;
}

TEST(MixtureGroups, FewMapsHaveNone) {
  EXPECT_THAT(MixtureGroups({}, 7), testing::IsEmpty());
  EXPECT_THAT(MixtureGroups(Bundles(8, 4, 16), 7), testing::IsEmpty());
}

TEST(MixtureGroups, AreNestedAndWithoutGaps) {
  const auto mixtures = MixtureGroups(Bundles(70, 70, 16), 7);
  ASSERT_EQ(mixtures.size(), 2u) << "17 and 4";
  int most = 4;
  for (const std::vector<int>& group : mixtures) {
    ASSERT_EQ(group.size(), 70u);
    const std::set<int> used(group.begin(), group.end());
    EXPECT_EQ(*used.begin(), 0);
    EXPECT_EQ(*used.rbegin() + 1, static_cast<int>(used.size()));
    EXPECT_LE(static_cast<int>(used.size()), most);
    most = 17;
  }
  for (int a = 0; a < 70; ++a) {
    for (int b = 0; b < a; ++b) {
      if (mixtures[1][a] == mixtures[1][b]) {
        EXPECT_EQ(mixtures[0][a], mixtures[0][b]);
      }
    }
  }
}

TEST(MixtureGroups, NearDirectionsAreTogether) {
  const auto mixtures = MixtureGroups(Bundles(16, 4, 32), 7);
  ASSERT_EQ(mixtures.size(), 1u);
  // Which bundle begins a group is chance; none is torn.
  for (int map = 4; map < 16; ++map) EXPECT_EQ(mixtures[0][map], mixtures[0][map % 4]);
}

// The row's h_S and that of the row before are two inputs: neither's scale reaches the other.
TEST(Normalise, DividesEachInputByItsOwnRootMeanSquare) {
  Samples samples;
  samples.inputs = 4;
  samples.rows.resize(2);
  samples.x = {3, 4, 600, -800, 0, 0, 1e-3f, 1e-3f};
  Normalise(2, samples);
  const float rms = std::sqrt(12.5f);
  EXPECT_NEAR(samples.x[0], 3 / rms, 1e-5);
  EXPECT_NEAR(samples.x[1], 4 / rms, 1e-5);
  EXPECT_NEAR(samples.x[2], 3 / rms, 1e-5) << "200 times as large, and the same";
  EXPECT_NEAR(samples.x[3], -4 / rms, 1e-5);
  EXPECT_EQ(samples.x[4], 0) << "no input is divided by 0";
  EXPECT_NEAR(samples.x[6], std::sqrt(0.5f), 1e-5) << "as small as the epsilon's root";
}

// Rows at odd places are none that k-means could use.
TEST(FindClusters, LooksAtNoMoreRowsThanItSays) {
  base::Rng rng(3);
  Samples samples;
  samples.inputs = 2;
  for (int64_t row = 0; row < 2 * kClusterRows - 2; ++row) {
    for (int i = 0; i < 2; ++i) {
      samples.x.push_back(row % 2 == 0 ? static_cast<float>(rng.NextDouble())
                                       : std::numeric_limits<float>::quiet_NaN());
    }
    samples.rows.push_back({nullptr, static_cast<int32_t>(row)});
  }
  for (const float value : FindClusters(samples, 2, 3, 7).weight) EXPECT_TRUE(std::isfinite(value));
}

// Whatever a file says that they draw: nobody asked.
TEST(Weights, AreNothingForRowsWithoutLaterQueries) {
  const std::string path = absl::StrCat(testing::TempDir(), "/samples_test.", getpid(), ".safetensors");
  RowsKey key;
  key.model = {"tiny", "llama", "3 layers", "tok", "weights"};
  key.layers = 3, key.hidden = 2, key.kv_width = 1, key.heads_kv = 1;
  key.splits = {1};
  key.mass_distance = 4;
  DocumentRows rows;
  rows.tokens = 10;
  rows.hidden[1].assign(20, 1);
  rows.kv[2].assign(20, 0);
  rows.mass[2] = {9, 1, 2, 3, 2, 2, 70, 80, 90, 100};
  ASSERT_TRUE(SaveRows(path, key, rows).ok());
  const auto file = RowFile::Open(path).value();
  std::filesystem::remove(path);
  std::vector<RowRef> refs;
  for (int32_t row = 1; row < 10; ++row) refs.push_back({file.get(), row});
  EXPECT_THAT(Weights(refs, 2), testing::ElementsAre(0.5f, 1, 1.5f, 1, 1, 0, 0, 0, 0));
}

}  // namespace
}  // namespace ridgefill::fit
