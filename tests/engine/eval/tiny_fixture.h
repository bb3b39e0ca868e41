// A tiny random checkpoint on the reference backend, random documents and random maps: what the tests of the
// evaluation run on in milliseconds.
#pragma once

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/rng.h"
#include "engine/model/weight_source.h"
#include "engine/ridge/device_maps.h"
#include "engine/ridge/fill_plan.h"
#include "engine/ridge/map_set.h"
#include "kernels/api/backend.h"

namespace ridgefill::eval {

// Of random folded maps.
struct MapKind {
  int mixture = 1;
  bool previous_row = false;
};
inline constexpr MapKind kMapKinds[] = {{1, false}, {1, true}, {3, false}, {3, true}};

class TinyFixture : public testing::Test {
 public:
  ~TinyFixture() override { std::filesystem::remove_all(folder_); }

 protected:
  static constexpr int kSplit = 1;  // of 4 layers
  static constexpr int64_t kTokens = 90;

  TinyFixture() : backend_(kernels::MakeReferenceBackend()) {
    const auto source = model::WeightSource::Open("tests/data/golden/tiny/llama").value();
    model_ = model::Model::Load(*source, *backend_, {}).value();
    identity_ = model::MakeIdentity("tiny", source->config(), "tok", source->weights_digest());
    folder_ = absl::StrCat(testing::TempDir(), "/tiny_fixture.", getpid(), ".",
                           testing::UnitTest::GetInstance()->current_test_info()->test_suite_name(), ".",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    base::Rng rng(5);
    for (int i = 0; i < 4; ++i) {
      documents_.emplace_back();
      for (int64_t j = 0; j < kTokens; ++j) {
        documents_.back().push_back(static_cast<int32_t>(rng.NextBelow(model_->config().vocab)));
      }
    }
  }

  static ridge::FillPlan Plan(int tail, const std::vector<int32_t>& outliers = {}) {
    ridge::FillDecision decision;
    decision.mode = ridge::Mode::kSpeed;
    decision.tail = tail;
    return ridge::MakeFillPlan(decision, kTokens, outliers, {});
  }
  static ridge::FillPlan ExactPlan() { return ridge::MakeFillPlan({}, kTokens, {}, {}); }

  ridge::MapSetManifest Manifest(bool folded) const {
    ridge::MapSetManifest m;
    m.model = identity_;
    m.layers = model_->config().layers;
    m.hidden = model_->config().hidden;
    m.kv_width = model_->config().kv_width();
    m.split = kSplit;
    m.folded = folded;
    return m;
  }
  std::unique_ptr<ridge::DeviceMaps> Store(const std::string& name, const ridge::MapSetManifest& manifest,
                                           const std::vector<ridge::LayerMap>& maps) const {
    const std::string folder = folder_ + "/" + name;
    EXPECT_TRUE(ridge::SaveMapSet(folder, manifest, maps).ok());
    return ridge::DeviceMaps::Load(*ridge::MapSet::Load(folder).value(), *backend_).value();
  }

  std::unique_ptr<ridge::DeviceMaps> RandomMaps(const MapKind& kind = {}, int split = kSplit) const {
    return ridge::DeviceMaps::Load(*RandomSet(kind, split), *backend_).value();
  }
  std::unique_ptr<ridge::MapSet> RandomSet(const MapKind& kind, int split = kSplit) const {
    ridge::MapSetManifest m = Manifest(true);
    m.split = split;
    m.mixture = kind.mixture;
    m.previous_row = kind.previous_row;
    m.normalised = kind.mixture > 1;
    const int64_t outputs = int64_t{2} * m.mixture * m.kv_width, inputs = ridge::MapInputs(m);
    base::Rng rng(3);
    std::vector<ridge::LayerMap> maps;
    for (int layer = split + 1; layer < m.layers; ++layer) {
      ridge::LayerMap map;
      map.layer = layer;
      for (int64_t i = 0; i < outputs * inputs; ++i) {
        map.weight.push_back(static_cast<float>(rng.NextDouble()) - 0.5f);
      }
      for (int64_t i = 0; i < outputs; ++i) map.bias.push_back(static_cast<float>(rng.NextDouble()));
      maps.push_back(std::move(map));
    }
    ridge::Gate gate;
    if (m.mixture > 1) {
      for (int64_t i = 0; i < int64_t{m.mixture} * m.hidden; ++i) {
        gate.weight.push_back(static_cast<float>(rng.NextDouble()) - 0.5f);
      }
      gate.bias.resize(m.mixture);
    }
    const std::string folder =
        absl::StrCat(folder_, "/random.", split, ".", m.mixture, ".", m.previous_row ? 1 : 0);
    EXPECT_TRUE(ridge::SaveMapSet(folder, m, maps, gate).ok());
    return ridge::MapSet::Load(folder).value();
  }

  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<model::Model> model_;
  base::ModelIdentity identity_;
  std::vector<std::vector<int32_t>> documents_;
  std::string folder_;
};

}  // namespace ridgefill::eval
