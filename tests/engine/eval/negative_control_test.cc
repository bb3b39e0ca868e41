// What must make a filled answer worse does (docs/method.md, "Measuring it", oracles): if one of these passed
// unnoticed, every figure of quality would be in doubt. On a real model; maps from a few thousand rows do.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "engine/eval/filled_forward.h"
#include "engine/fit/fit.h"
#include "engine/ridge/device_maps.h"
#include "engine/ridge/map_set.h"
#include "tests/engine/eval/smollm.h"

namespace ridgefill::eval {
namespace {

constexpr int kSplit = 18;
constexpr int64_t kTokens = 768, kTail = 128;

class NegativeControlTest : public testing::Test {
 protected:
  // The model, maps and the exact run once for all tests.
  static void SetUpTestSuite() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return;
#endif
    if (!testing_support::SmolLmIsThere()) return;
    shared_ = new Shared;
    shared_->folder = testing::TempDir() + "/negative_control_test";
    std::filesystem::remove_all(shared_->folder);
    shared_->lm = testing_support::LoadSmolLm();
    const auto calibration =
        fit::LoadCorpus(*shared_->lm.tokenizer, "tests/data/corpus/calibration", {.document_tokens = 1024})
            .value();
    fit::FitOptions options;
    options.splits = {kSplit};
    options.rows = 6 * 1024;
    options.held_out_documents = 1;
    options.mixture = 1, options.previous_row = false;  // maps whose rows the controls can move about
    options.out = shared_->folder + "/fitted";
    const auto fitted = fit::FitMaps(*shared_->lm.model, shared_->lm.identity, calibration, options);
    ASSERT_TRUE(fitted.ok()) << fitted.status();
    shared_->set = ridge::MapSet::Load(options.out).value();

    const auto held_out =
        fit::LoadCorpus(*shared_->lm.tokenizer, "tests/data/corpus/heldout", {.document_tokens = kTokens})
            .value();
    shared_->forward = FilledForward::Create(*shared_->lm.model, kSplit, kTokens, kTokens).value();
    ASSERT_TRUE(shared_->forward->Lower(held_out[0].ids).ok());
    shared_->exact_nll = Nll(ridge::MakeFillPlan({}, kTokens, {}, {}), nullptr);
    shared_->exact = Mean(shared_->exact_nll);
    const auto maps = ridge::DeviceMaps::Load(*shared_->set, *shared_->lm.backend).value();
    shared_->filled = Loss(*maps, Plan());
  }
  static void TearDownTestSuite() {
    if (shared_ == nullptr) return;
    std::filesystem::remove_all(shared_->folder);
    delete shared_;
    shared_ = nullptr;
  }
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a real model under a sanitizer takes minutes";
#endif
    if (shared_ == nullptr)
      GTEST_SKIP() << "no " << testing_support::SmolLmPath() << " (deploy/fetch_model.sh)";
  }

  // Of each token of the tail.
  static std::vector<double> Nll(const ridge::FillPlan& plan, runtime::FillPass* fill) {
    EXPECT_TRUE(shared_->forward->Late(plan, fill).ok());
    return shared_->forward->NextTokenNll(kTokens - kTail, kTokens - 1).value();
  }
  static double Mean(const std::vector<double>& x) {
    return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
  }
  // Nats per token of the tail over the exact run.
  static double Loss(const ridge::DeviceMaps& maps, const ridge::FillPlan& plan) {
    const auto fill = runtime::FillPass::Create(*shared_->lm.model, maps, kTokens).value();
    return Mean(Nll(plan, fill.get())) - shared_->exact;
  }
  // Mean |nll - exact nll| over the tail: luck on single tokens does not cancel, so small harm shows on one
  // document.
  static double Distance(const ridge::DeviceMaps& maps, const ridge::FillPlan& plan) {
    const auto fill = runtime::FillPass::Create(*shared_->lm.model, maps, kTokens).value();
    std::vector<double> difference = Nll(plan, fill.get());
    for (size_t i = 0; i < difference.size(); ++i)
      difference[i] = std::fabs(difference[i] - shared_->exact_nll[i]);
    return Mean(difference);
  }
  static ridge::FillPlan Plan() {
    ridge::FillDecision decision;
    decision.mode = ridge::Mode::kSpeed;
    decision.tail = kTail;
    std::vector<int32_t> outliers;
    for (int64_t row = 0; row < kTokens; ++row) {
      if (ridge::IsOutlier(row, shared_->forward->norms()[row], shared_->set->manifest().outlier_threshold)) {
        outliers.push_back(static_cast<int32_t>(row));
      }
    }
    return ridge::MakeFillPlan(decision, kTokens, outliers, {});
  }
  // The fitted maps with `change` made to each layer's.
  template <typename Change>
  static std::unique_ptr<ridge::DeviceMaps> ChangedMaps(Change change) {
    const ridge::MapSetManifest& m = shared_->set->manifest();
    std::vector<ridge::LayerMap> maps;
    for (int layer = kSplit + 1; layer < m.layers; ++layer) {
      maps.push_back(shared_->set->ReadLayer(layer).value());
      change(maps.back());
    }
    const std::string folder = shared_->folder + "/changed";
    EXPECT_TRUE(ridge::SaveMapSet(folder, m, maps).ok());
    return ridge::DeviceMaps::Load(*ridge::MapSet::Load(folder).value(), *shared_->lm.backend).value();
  }

  struct Shared {
    std::string folder;
    testing_support::SmolLm lm;
    std::unique_ptr<ridge::MapSet> set;
    std::unique_ptr<FilledForward> forward;
    std::vector<double> exact_nll;
    double exact = 0, filled = 0;
  };
  static Shared* shared_;
};
NegativeControlTest::Shared* NegativeControlTest::shared_ = nullptr;

TEST_F(NegativeControlTest, TheFillItselfCostsLittle) {
  RecordProperty("exact_nll", std::to_string(shared_->exact));
  RecordProperty("filled_loss", std::to_string(shared_->filled));
  EXPECT_GT(shared_->exact, 1);
  EXPECT_LT(shared_->exact, 5);
  EXPECT_LT(std::fabs(shared_->filled), 0.3);
}

TEST_F(NegativeControlTest, OutlierRowsFilledCostNats) {
  ridge::FillPlan plan = Plan();
  ASSERT_FALSE(plan.outliers.empty());
  plan.outliers.clear();
  const auto maps = ridge::DeviceMaps::Load(*shared_->set, *shared_->lm.backend).value();
  const double loss = Loss(*maps, plan);
  std::printf("exact %.4f, filled %+.4f, outliers filled %+.4f\n", shared_->exact, shared_->filled, loss);
  EXPECT_GT(loss, shared_->filled + 2);
}

TEST_F(NegativeControlTest, KeysOfAnotherHeadCost) {
  const int head = shared_->lm.model->config().head_dim, d = shared_->lm.model->config().hidden;
  const int kv = shared_->lm.model->config().kv_width();
  const auto maps = ChangedMaps([&](ridge::LayerMap& map) {
    std::rotate(map.weight.begin(), map.weight.begin() + head * d, map.weight.begin() + kv * d);
    std::rotate(map.bias.begin(), map.bias.begin() + head, map.bias.begin() + kv);
  });
  const double loss = Loss(*maps, Plan());
  std::printf("filled %+.4f, keys of the next head %+.4f\n", shared_->filled, loss);
  EXPECT_GT(loss, shared_->filled + 0.1);
}

// One position is within the noise of maps from so few rows on one document; quality_test sees it on sixteen.
// That filled rows get their own position to the bit is filled_forward_test's.
TEST_F(NegativeControlTest, ShiftedPositionsCost) {
  const auto maps = ChangedMaps(
      [&](ridge::LayerMap& map) { testing_support::ShiftKeyPositions(*shared_->lm.model, 32, map); });
  const auto fitted = ridge::DeviceMaps::Load(*shared_->set, *shared_->lm.backend).value();
  const double right = Distance(*fitted, Plan()), wrong = Distance(*maps, Plan());
  std::printf("from exact: filled %.4f, positions shifted %.4f\n", right, wrong);
  EXPECT_GT(wrong, 1.02 * right);
}

}  // namespace
}  // namespace ridgefill::eval
