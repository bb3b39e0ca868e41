#include "engine/fit/samples.h"

#include <gmock/gmock.h>

#include <cmath>
#include <set>

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

}  // namespace
}  // namespace ridgefill::fit
