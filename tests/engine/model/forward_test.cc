// What the engines rely on: however a forward is cut into chunks and layers, it gives the same bits; and the
// steps of a fill give what a forward gives. On every backend, on a checkpoint of each architecture.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/base/check.h"
#include "engine/base/rng.h"
#include "tests/golden/model_runner.h"

namespace ridgefill::model {
namespace {

using golden::ModelRunner;
using golden::Range;

constexpr int64_t kTokens = 150;  // two full blocks and a part

struct Case {
  std::string checkpoint, backend;
};

std::string CheckpointPath(const std::string& name) {
  return absl::StrCat(RIDGEFILL_SOURCE_DIR, "/tests/data/golden/tiny/", name);
}

// Everything that a forward leaves behind.
struct Outcome {
  std::string hidden;
  std::vector<std::string> kv;  // per layer
  std::vector<float> logits;
};

class Forward : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    base::Rng rng(7);
    for (int64_t i = 0; i < kTokens; ++i) ids_.push_back(static_cast<int32_t>(rng.NextBelow(320)));
    runner_ = NewRunner();
  }

  static std::unique_ptr<ModelRunner> NewRunner() {
    auto backend = golden::MakeBackend(GetParam().backend);
    RF_CHECK(backend.ok());
    auto runner = ModelRunner::New(CheckpointPath(GetParam().checkpoint), std::move(*backend), kTokens);
    RF_CHECK(runner.ok());
    return std::move(*runner);
  }

  Outcome Read(ModelRunner& runner) const {
    Outcome outcome;
    outcome.hidden = runner.HiddenBytes({0, kTokens}).value();
    for (int l = 0; l < runner.layers(); ++l) outcome.kv.push_back(runner.KvBytes(l, {0, kTokens}).value());
    outcome.logits = runner.Logits({0, kTokens}).value();
    return outcome;
  }
  // The plain way: all rows, all layers, one call.
  Outcome Whole() const {
    const auto runner = NewRunner();
    EXPECT_TRUE(runner->Embed(ids_).ok());
    EXPECT_TRUE(runner->Forward({0, kTokens}, {0, runner->layers()}).ok());
    return Read(*runner);
  }
  static void ExpectEqual(const Outcome& a, const Outcome& b) {
    EXPECT_TRUE(a.hidden == b.hidden) << "residuals differ";
    for (size_t l = 0; l < a.kv.size(); ++l)
      EXPECT_TRUE(a.kv[l] == b.kv[l]) << "K or V of layer " << l << " differ";
    EXPECT_TRUE(a.logits == b.logits) << "logits differ";
  }
  kernels::Tensor NewKv() {
    const ModelConfig& config = runner_->model().config();
    return runner_->backend()
        .Allocate(runner_->backend().capabilities().activation_dtype, {kTokens, 2LL * config.kv_width()})
        .value();
  }
  std::string Bytes(const kernels::TensorView& view) {
    std::string bytes(view.bytes(), '\0');
    EXPECT_TRUE(runner_->backend().CopyToHost(runner_->stream(), view, absl::MakeSpan(bytes)).ok());
    EXPECT_TRUE(runner_->backend().Synchronize(runner_->stream()).ok());
    return bytes;
  }

  std::vector<int32_t> ids_;
  std::unique_ptr<ModelRunner> runner_;
};

TEST_P(Forward, ChunksGiveTheBitsOfTheWhole) {
  const Outcome whole = Whole();
  for (int64_t chunk : {1, 37, 64, 149}) {
    SCOPED_TRACE(chunk);
    ASSERT_TRUE(runner_->Embed(ids_).ok());
    ASSERT_TRUE(runner_->ForwardChunked({0, kTokens}, chunk).ok());
    ExpectEqual(Read(*runner_), whole);
  }
}

TEST_P(Forward, LowerThenUpperLayersGiveTheBitsOfAll) {
  const Outcome whole = Whole();
  for (int split = 1; split < runner_->layers(); ++split) {
    SCOPED_TRACE(split);
    ASSERT_TRUE(runner_->Embed(ids_).ok());
    ASSERT_TRUE(runner_->Forward({0, 70}, {0, split}).ok());
    ASSERT_TRUE(runner_->Forward({70, kTokens}, {0, split}).ok());
    ASSERT_TRUE(runner_->Forward({0, kTokens}, {split, runner_->layers()}).ok());
    ExpectEqual(Read(*runner_), whole);
  }
}

TEST_P(Forward, ProjectAndWriteKvGiveWhatForwardWrites) {
  const Outcome whole = Whole();
  const kernels::Tensor kv = NewKv();
  const auto batch = runner_->NewBatch({0, kTokens}, kernels::Phase::kPrompt).value();
  ASSERT_TRUE(runner_->Embed(ids_).ok());
  for (int layer = 0; layer < runner_->layers(); ++layer) {
    const Model& model = runner_->model();
    const kernels::TensorView hidden = runner_->hidden({0, kTokens});
    ASSERT_TRUE(model.ProjectKv(runner_->stream(), runner_->workspace(), layer, hidden, kv.view()).ok());
    ASSERT_TRUE(model.WriteKv(runner_->stream(), layer, kv.view(), *batch, runner_->cache()).ok());
    EXPECT_TRUE(runner_->KvBytes(layer, {0, kTokens}).value() == whole.kv[layer]) << "layer " << layer;
    ASSERT_TRUE(runner_->Forward({0, kTokens}, {layer, layer + 1}).ok());
  }
}

TEST_P(Forward, CallbacksSeeEveryLayerOnceAndTheKvOfAProjection) {
  const auto batch = runner_->NewBatch({0, kTokens}, kernels::Phase::kPrompt).value();
  ASSERT_TRUE(runner_->Embed(ids_).ok());
  const kernels::Tensor kv = NewKv();
  ASSERT_TRUE(
      runner_->model()
          .ProjectKv(runner_->stream(), runner_->workspace(), 0, runner_->hidden({0, kTokens}), kv.view())
          .ok());
  const std::string projected = Bytes(kv.view());
  std::vector<int> kv_layers, done_layers;
  ForwardArgs args;
  args.batch = batch.get();
  args.cache = &runner_->cache();
  args.hidden = runner_->hidden({0, kTokens});
  args.layer_end = runner_->layers();
  args.workspace = &runner_->workspace();
  args.on_kv = [&](int layer, const kernels::TensorView& seen) {
    if (layer == 0) {
      EXPECT_TRUE(Bytes(seen) == projected);
    }
    kv_layers.push_back(layer);
    return absl::OkStatus();
  };
  args.after_layer = [&](int layer) {
    done_layers.push_back(layer);
    return layer < 2 ? absl::OkStatus() : absl::CancelledError("enough");
  };
  EXPECT_EQ(runner_->model().Forward(runner_->stream(), args), absl::CancelledError("enough"));
  EXPECT_THAT(kv_layers, testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(done_layers, testing::ElementsAre(0, 1, 2));
}

// One token throughout: queries differ by their turn alone, and every row's attention finds its keys.
TEST_P(Forward, QueriesComeTurnedWithTheirKeysInTheCache) {
  kernels::Backend& backend = runner_->backend();
  const ModelConfig& config = runner_->model().config();
  const auto batch = runner_->NewBatch({0, kTokens}, kernels::Phase::kPrompt).value();
  ASSERT_TRUE(runner_->Embed(std::vector<int32_t>(kTokens, 7)).ok());
  kernels::Tensor mass = backend.Allocate(kernels::DType::kF32, {config.heads_kv, kTokens}).value();
  const std::string zeros(mass.view().bytes(), '\0');
  std::vector<int> layers;
  ForwardArgs args;
  args.batch = batch.get();
  args.cache = &runner_->cache();
  args.hidden = runner_->hidden({0, kTokens});
  args.layer_end = 2;
  args.workspace = &runner_->workspace();
  args.on_query = [&](int layer, const kernels::TensorView& q) {
    layers.push_back(layer);
    if (layer == 0) {
      EXPECT_NE(Bytes(q.Rows(0, 1)), Bytes(q.Rows(1, 1)));
    }
    EXPECT_TRUE(backend.CopyFromHost(runner_->stream(), zeros, mass.view()).ok());
    EXPECT_TRUE(backend
                    .AttentionMass(runner_->stream(), {.batch = batch.get(),
                                                       .q = q,
                                                       .cache = &runner_->cache(),
                                                       .layer = layer,
                                                       .scale = 0.25f,
                                                       .mass = mass.view()})
                    .ok());
    const std::string bytes = Bytes(mass.view());
    double total = 0;
    for (size_t i = 0; i < bytes.size(); i += 4) {
      float value = 0;
      std::memcpy(&value, &bytes[i], 4);
      total += value;
    }
    EXPECT_NEAR(total, kTokens * config.heads_q, 1e-2);
    return absl::OkStatus();
  };
  ASSERT_TRUE(runner_->model().Forward(runner_->stream(), args).ok());
  EXPECT_THAT(layers, testing::ElementsAre(0, 1));
}

TEST_P(Forward, LowerLayersAloneGiveTheSameResidual) {
  const auto whole = NewRunner();
  ASSERT_TRUE(whole->Embed(ids_).ok());
  ASSERT_TRUE(whole->Forward({0, kTokens}, {0, 2}).ok());
  LoadOptions options;
  options.layer_end = 2;
  std::vector<double> progress;
  options.progress = [&](double share) { progress.push_back(share); };
  const auto lower = Model::Load(runner_->source(), runner_->backend(), options).value();
  EXPECT_EQ(lower->loaded_layers(), 2);
  EXPECT_FALSE(lower->has_head());
  EXPECT_LT(lower->weight_bytes(), runner_->model().weight_bytes());
  EXPECT_THAT(progress, testing::WhenSorted(testing::ContainerEq(progress)));
  EXPECT_EQ(progress.back(), 1.0);

  ASSERT_TRUE(runner_->Embed(ids_).ok());
  const auto batch = runner_->NewBatch({0, kTokens}, kernels::Phase::kPrompt).value();
  ForwardArgs args;
  args.batch = batch.get();
  args.cache = &runner_->cache();
  args.hidden = runner_->hidden({0, kTokens});
  args.layer_end = 2;
  args.workspace = &runner_->workspace();
  ASSERT_TRUE(lower->Forward(runner_->stream(), args).ok());
  EXPECT_TRUE(runner_->HiddenBytes({0, kTokens}).value() == whole->HiddenBytes({0, kTokens}).value());
  args.layer_end = 3;
  EXPECT_THAT(std::string(lower->Forward(runner_->stream(), args).message()),
              testing::HasSubstr("of 2 loaded ones"));
  EXPECT_FALSE(
      lower
          ->Logits(runner_->stream(), runner_->workspace(), kernels::Phase::kPrompt, args.hidden, args.hidden)
          .ok());
}

TEST_P(Forward, RefusesMoreRowsThanTheWorkspaceHolds) {
  const auto batch = runner_->NewBatch({0, kTokens}, kernels::Phase::kPrompt).value();
  const auto small = runner_->model().NewWorkspace(kTokens - 1).value();
  ForwardArgs args;
  args.batch = batch.get();
  args.cache = &runner_->cache();
  args.hidden = runner_->hidden({0, kTokens});
  args.layer_end = 1;
  args.workspace = small.get();
  EXPECT_THAT(std::string(runner_->model().Forward(runner_->stream(), args).message()),
              testing::HasSubstr("150 rows in a workspace of 149"));
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const std::string& backend : golden::BackendNames()) {
    for (const char* checkpoint : {"llama", "qwen2"}) cases.push_back({checkpoint, backend});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Forward, testing::ValuesIn(AllCases()), [](const auto& info) {
  return absl::StrReplaceAll(absl::StrCat(info.param.checkpoint, "_", info.param.backend),
                             {{"/", "_"}, {"-", "_"}});
});

}  // namespace
}  // namespace ridgefill::model
