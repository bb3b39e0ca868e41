// What the loading of a model refuses before it takes memory.
#include "services/common/loaded_model.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace ridgefill::common {
namespace {

using testing::HasSubstr;

constexpr char kTiny[] = "tests/data/golden/tiny/llama";

std::string ReasonOf(const absl::Status& status) {
  const auto detail = base::GetErrorDetail(status);
  return detail ? detail->reason : status.ToString();
}

class LoadedModelTest : public testing::Test {
 public:
  ~LoadedModelTest() override { std::filesystem::remove_all(folder_); }

 protected:
  // Zeros for the tiny model; split 1 is in folder_, others beside it.
  void WriteMaps(bool folded, int mixture = 1, bool previous_row = false, int split = 1) {
    config::v1::ModelSourceConfig source;
    source.set_model(kTiny);
    const OpenedModel opened = OpenModel("", source).value();
    const model::ModelConfig& config = opened.source->config();
    ridge::MapSetManifest manifest;
    manifest.model = opened.identity;
    manifest.layers = config.layers;
    manifest.hidden = config.hidden;
    manifest.kv_width = config.kv_width();
    manifest.split = split;
    manifest.folded = folded;
    manifest.mixture = mixture;
    manifest.previous_row = previous_row;
    const int64_t outputs = folded ? int64_t{2} * mixture * config.kv_width() : config.hidden;
    const int64_t inputs = ridge::MapInputs(manifest);
    std::vector<ridge::LayerMap> maps;
    for (int layer = split + 1; layer < config.layers; ++layer) {
      maps.push_back({layer, std::vector<float>(outputs * inputs), std::vector<float>(outputs)});
    }
    ridge::Gate gate;
    if (mixture > 1)
      gate = {std::vector<float>(int64_t{mixture} * config.hidden), std::vector<float>(mixture)};
    ASSERT_TRUE(ridge::SaveMapSet(Folder(split), manifest, maps, gate).ok());
  }
  std::string Folder(int split) const {
    return split == 1 ? folder_ : absl::StrCat(folder_, "/split-", split);
  }

  absl::StatusOr<LoadedModel> Load(bool lower_layers_only) { return LoadWith({folder_}, lower_layers_only); }
  absl::StatusOr<LoadedModel> LoadWith(const std::vector<std::string>& maps, bool lower_layers_only) {
    LoadModelOptions options;
    options.source.set_model(kTiny);
    *options.source.mutable_maps() = {maps.begin(), maps.end()};
    options.backend.set_kind("reference");
    options.lower_layers_only = lower_layers_only;
    options.for_decode = !lower_layers_only;
    return LoadModel(options);
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/loaded_model_test.", getpid());
};

TEST_F(LoadedModelTest, LowerLayersAloneNeedFoldedMaps) {
  WriteMaps(/*folded=*/true);
  const auto folded = Load(/*lower_layers_only=*/true);
  ASSERT_TRUE(folded.ok()) << folded.status();
  EXPECT_EQ(folded->model->loaded_layers(), 2);

  WriteMaps(/*folded=*/false);
  const absl::Status refused = Load(/*lower_layers_only=*/true).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(refused), "MAPS_UNFOLDED");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("ridgefill fit"));
  const auto all = Load(/*lower_layers_only=*/false);
  EXPECT_TRUE(all.ok()) << all.status();
}

TEST_F(LoadedModelTest, SeveralMapSetsAreOfDifferentSplits) {
  WriteMaps(/*folded=*/true);
  WriteMaps(/*folded=*/true, /*mixture=*/1, /*previous_row=*/false, /*split=*/2);
  const auto both = LoadWith({Folder(2), Folder(1)}, /*lower_layers_only=*/true);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->model->loaded_layers(), 3) << "up to the highest split";
  EXPECT_EQ(ridge::SplitNames(both->map_sets()), "2, 1") << "the default one first";
  ASSERT_EQ(both->hello.maps.size(), 2u);
  EXPECT_EQ(both->hello.maps[1].split, 1);
  EXPECT_EQ(both->hello.maps[1].digest, both->maps[1]->manifest().digest);

  const absl::Status same = LoadWith({Folder(1), Folder(1)}, false).status();
  EXPECT_EQ(ReasonOf(same), "MAPS_SAME_SPLIT");
  EXPECT_THAT(std::string(same.message()), HasSubstr("split 1"));
  for (const char* none : {"none", ""}) {
    EXPECT_EQ(ReasonOf(LoadWith({Folder(1), none}, false).status()), "MAPS_NONE_AMONG_OTHERS");
  }
  EXPECT_TRUE(LoadWith({"none"}, false)->maps.empty());
}

// The check before a model is loaded against what the packed maps of the oracle, all f32, really take.
TEST_F(LoadedModelTest, MapsAreCountedAsTheyArePacked) {
  struct Kind {
    bool folded, previous_row;
    int mixture;
  };
  for (const Kind& kind : {Kind{true, false, 1}, Kind{true, true, 1}, Kind{true, false, 3},
                           Kind{true, true, 3}, Kind{false, false, 1}}) {
    WriteMaps(kind.folded, kind.mixture, kind.previous_row);
    const LoadedModel model = Load(/*lower_layers_only=*/false).value();
    const double counted = 4.0 * static_cast<double>(MapParameters(model.maps.front()->manifest()));
    EXPECT_NEAR(counted, static_cast<double>(model.maps.front()->bytes()), 0.02 * counted)
        << kind.folded << " " << kind.mixture << " " << kind.previous_row;
  }
}

TEST_F(LoadedModelTest, SetsBesideEachOtherAreCountedTogether) {
  WriteMaps(/*folded=*/true, /*mixture=*/3);
  const LoadedModel model = Load(/*lower_layers_only=*/false).value();
  std::vector<ridge::MapSetManifest> sets(3, model.maps.front()->manifest());
  sets[2].split = 2;
  const int64_t one = 4 * MapParameters(sets[0]), all = 2 * one + 4 * MapParameters(sets[2]);
  EXPECT_TRUE(CheckMapsFit(sets, *model.backend, all).ok());
  EXPECT_TRUE(CheckMapsFit(sets, *model.backend, -1).ok()) << "unknown";
  const absl::Status refused = CheckMapsFit(sets, *model.backend, all - 1);
  EXPECT_EQ(ReasonOf(refused), "MODEL_DOES_NOT_FIT");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("split 1 1 MB + split 1 1 MB + split 2"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("fewer splits"));
}

TEST_F(LoadedModelTest, KvMemoryMustHoldOneContext) {
  WriteMaps(/*folded=*/true);
  LoadedModel model = Load(/*lower_layers_only=*/false).value();
  model.context_tokens = 4096;  // 64 blocks of 32 KiB
  EXPECT_TRUE(CheckKvMemory(model, 2).ok());
  const absl::Status refused = CheckKvMemory(model, 1);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("kv_memory_mb 1 holds 32 blocks of 64 tokens, but one request of context_tokens 4096 "
                        "needs 64 (2 MB)"));
}

}  // namespace
}  // namespace ridgefill::common
