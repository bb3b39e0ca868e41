// The evaluation's forward against plain passes, on a tiny random checkpoint and the reference backend.
#include "engine/eval/filled_forward.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "engine/base/rng.h"
#include "tests/engine/eval/tiny_fixture.h"

namespace ridgefill::eval {
namespace {

using testing::SizeIs;

class FilledForwardTest : public TinyFixture {
 protected:
  std::unique_ptr<FilledForward> Forward(int64_t chunk_rows) const {
    return FilledForward::Create(*model_, kSplit, kTokens, chunk_rows).value();
  }
};

TEST_F(FilledForwardTest, AllRowsExactEqualsAPlainForwardBitForBit) {
  const auto pass = runtime::SequencePass::Create(*model_, kTokens, kTokens).value();
  const auto hidden = backend_->Allocate(kernels::DType::kF32, {kTokens, model_->config().hidden}).value();
  const auto logits = backend_->Allocate(kernels::DType::kF32, {kTokens, model_->config().vocab}).value();
  ASSERT_TRUE(pass->Embed(documents_[0], hidden.view()).ok());
  ASSERT_TRUE(
      pass->Forward({runtime::Positions(0, kTokens), hidden.view(), 0, model_->config().layers, {}}).ok());
  ASSERT_TRUE(
      model_->Logits(pass->stream(), pass->workspace(), kernels::Phase::kPrompt, hidden.view(), logits.view())
          .ok());
  const std::vector<float> want = pass->Floats(logits.view()).value();
  for (int64_t chunk : {kTokens, int64_t{17}}) {
    const auto forward = Forward(chunk);
    ASSERT_TRUE(forward->Lower(documents_[0]).ok());
    ASSERT_TRUE(forward->Late(ExactPlan(), nullptr).ok());
    for (int64_t position : {int64_t{0}, int64_t{40}, kTokens - 1}) {
      const std::vector<float> got = forward->Logits(position).value();
      ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin() + position * model_->config().vocab));
    }
  }
}

TEST_F(FilledForwardTest, ChunksDoNotChangeAFilledAnswer) {
  for (const MapKind& kind : kMapKinds) {
    SCOPED_TRACE(absl::StrCat("mixture ", kind.mixture, ", previous row ", kind.previous_row));
    const auto maps = RandomMaps(kind);
    std::vector<double> want;
    for (int64_t chunk : {kTokens, int64_t{31}, int64_t{7}}) {
      const auto forward = Forward(chunk);
      const auto fill = runtime::FillPass::Create(*model_, *maps, chunk).value();
      ASSERT_TRUE(forward->Lower(documents_[1]).ok());
      ASSERT_TRUE(forward->Late(Plan(20, {33, 5}), fill.get()).ok());
      const auto got = forward->NextTokenNll(kTokens - 20, kTokens - 1);
      ASSERT_TRUE(got.ok()) << got.status();
      ASSERT_THAT(*got, SizeIs(19));
      if (want.empty()) want = *got;
      EXPECT_EQ(*got, want);
    }
  }
}

TEST_F(FilledForwardTest, FillsChangeTheAnswerAndTheirOrderDoesNot) {
  for (const MapKind& kind : kMapKinds) {
    SCOPED_TRACE(absl::StrCat("mixture ", kind.mixture, ", previous row ", kind.previous_row));
    const auto maps = RandomMaps(kind);
    const auto forward = Forward(32);
    const auto ridge = runtime::FillPass::Create(*model_, *maps, 32).value();
    const auto identity = runtime::FillPass::CreateIdentity(*model_, kSplit, 32).value();
    ASSERT_TRUE(forward->Lower(documents_[2]).ok());
    const auto run = [&](const ridge::FillPlan& plan, runtime::FillPass* fill) {
      EXPECT_TRUE(forward->Late(plan, fill).ok());
      return forward->NextTokenNll(kTokens - 10, kTokens - 1).value();
    };
    const auto exact = run(ExactPlan(), nullptr), filled = run(Plan(10), ridge.get()),
               same = run(Plan(10), identity.get());
    EXPECT_NE(filled, exact);
    EXPECT_NE(same, exact);
    EXPECT_NE(same, filled);
    // Whatever an earlier run left in the cache is overwritten.
    EXPECT_EQ(run(ExactPlan(), nullptr), exact);
    EXPECT_EQ(run(Plan(10), ridge.get()), filled);
  }
}

// A row of h_S as the maps take it.
std::vector<double> InputByHand(const ridge::MapSetManifest& m, const float* hidden) {
  std::vector<double> x(hidden, hidden + m.hidden);
  if (!m.normalised) return x;
  double sum = 0;
  for (const double value : x) sum += value * value;
  for (double& value : x) value /= std::sqrt(sum / m.hidden + 1e-6);
  return x;
}

// Of row `row`: the best map of its h_S, on h_S and the previous row's.
std::vector<double> PredictByHand(const ridge::MapSetManifest& m, const ridge::LayerMap& map,
                                  const ridge::Gate& gate, const float* hidden_row, const float* previous_row,
                                  int* best) {
  const std::vector<double> hidden = InputByHand(m, hidden_row), previous = InputByHand(m, previous_row);
  const int64_t d = m.hidden, inputs = ridge::MapInputs(m), columns = 2 * m.kv_width;
  *best = 0;
  double best_score = -INFINITY;
  for (int i = 0; i < m.mixture && m.mixture > 1; ++i) {
    double score = gate.bias[i];
    for (int64_t j = 0; j < d; ++j) score += double{gate.weight[i * d + j]} * hidden[j];
    if (score > best_score) best_score = score, *best = i;
  }
  std::vector<double> out;
  for (int64_t o = *best * columns; o < (*best + 1) * columns; ++o) {
    double sum = map.bias[o];
    for (int64_t j = 0; j < d; ++j) sum += double{map.weight[o * inputs + j]} * hidden[j];
    for (int64_t j = d; j < inputs; ++j) sum += double{map.weight[o * inputs + j]} * previous[j - d];
    out.push_back(sum);
  }
  return out;
}

// Rows come back in the order in which they were given, however they were grouped by map.
TEST_F(FilledForwardTest, PredictsEachRowByItsOwnMap) {
  constexpr int kLayer = 2;
  const auto pass = runtime::SequencePass::Create(*model_, kTokens, kTokens).value();
  const int64_t d = model_->config().hidden, columns = 2 * model_->config().kv_width();
  base::Rng rng(4);
  std::vector<float> hidden(kTokens * d), previous(kTokens * d);
  for (float& value : hidden) value = static_cast<float>(rng.NextDouble()) - 0.5f;
  for (float& value : previous) value = static_cast<float>(rng.NextDouble()) - 0.5f;
  const auto upload = [&](const std::vector<float>& values) {
    auto out = backend_->Allocate(kernels::DType::kF32, {kTokens, d}).value();
    EXPECT_TRUE(backend_
                    ->CopyFromHost(pass->stream(),
                                   {reinterpret_cast<const char*>(values.data()), values.size() * 4},
                                   out.view())
                    .ok());
    return out;
  };
  const auto x = upload(hidden), before = upload(previous);
  for (const MapKind& kind : kMapKinds) {
    SCOPED_TRACE(absl::StrCat("mixture ", kind.mixture, ", previous row ", kind.previous_row));
    const auto set = RandomSet(kind);
    const auto maps = ridge::DeviceMaps::Load(*set, *backend_).value();
    const auto fill = runtime::FillPass::Create(*model_, *maps, kTokens).value();
    const auto kv = backend_->Allocate(kernels::DType::kF32, {kTokens, columns}).value();
    ASSERT_TRUE(
        fill->Predict(pass->stream(), pass->workspace(), kLayer, {x.view(), before.view()}, kv.view()).ok());
    const std::vector<float> got = pass->Floats(kv.view()).value();
    const ridge::LayerMap map = set->ReadLayer(kLayer).value();
    const ridge::Gate gate = set->ReadGate().value();
    std::vector<int> taken(kind.mixture), order;
    for (int64_t row = 0; row < kTokens; ++row) {
      int best = 0;
      const auto want =
          PredictByHand(set->manifest(), map, gate, &hidden[row * d], &previous[row * d], &best);
      ++taken[best];
      order.push_back(best);
      for (int64_t o = 0; o < columns; ++o) {
        ASSERT_NEAR(got[row * columns + o], want[o], 1e-4 * (1 + std::fabs(want[o]))) << row << " " << o;
      }
    }
    EXPECT_THAT(taken, testing::Each(testing::Gt(0)));
    EXPECT_EQ(std::is_sorted(order.begin(), order.end()), kind.mixture == 1) << "maps come mixed";
  }
}

// The scores against attention mass of a plain pass, whatever the chunks; rows after the prompt count for
// nothing.
TEST_F(FilledForwardTest, ScoresAreWhatTheLastPromptRowsAttendTo) {
  constexpr int64_t kPrompt = 80;
  const auto pass = runtime::SequencePass::Create(*model_, kTokens, kTokens).value();
  const model::ModelConfig& config = model_->config();
  const auto hidden = backend_->Allocate(kernels::DType::kF32, {kPrompt, config.hidden}).value();
  const auto mass = backend_->Allocate(kernels::DType::kF32, {config.heads_kv, kPrompt}).value();
  ASSERT_TRUE(pass->Embed(absl::MakeConstSpan(documents_[0]).subspan(0, kPrompt), hidden.view()).ok());
  const std::vector<int32_t> rows = runtime::Positions(0, kPrompt), last = runtime::Positions(48, kPrompt);
  const std::string zeros(mass.view().bytes(), '\0');
  ASSERT_TRUE(backend_->CopyFromHost(pass->stream(), zeros, mass.view()).ok());
  runtime::SequencePass::Layers layers{rows, hidden.view(), 0, kSplit, {}};
  layers.on_query = [&](int layer, const kernels::TensorView& q) {
    return pass->WithBatch(last, [&](const kernels::Batch& batch) {
      kernels::AttentionMassArgs args;
      args.batch = &batch;
      args.q = q.Rows(48, 32);
      args.cache = &pass->cache();
      args.layer = layer;
      args.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
      args.mass = mass.view();
      return backend_->AttentionMass(pass->stream(), args);
    });
  };
  ASSERT_TRUE(pass->Forward(layers).ok());
  std::vector<float> want(kPrompt);
  const std::vector<float> by_head = pass->Floats(mass.view()).value();
  for (size_t i = 0; i < by_head.size(); ++i) {
    want[i % kPrompt] = std::max(want[i % kPrompt], by_head[i]);
  }
  const int group = config.heads_q / config.heads_kv;
  for (float& score : want) score /= static_cast<float>(32 * group);
  for (int64_t chunk : {kTokens, int64_t{31}, int64_t{7}}) {
    const auto forward = Forward(chunk);
    ASSERT_TRUE(forward->Lower(documents_[0], kPrompt).ok());
    EXPECT_EQ(forward->scores(), want) << "chunks of " << chunk;
  }
  const auto forward = Forward(kTokens);
  ASSERT_TRUE(forward->Lower(documents_[0]).ok());
  EXPECT_TRUE(forward->scores().empty());
}

// A probe against a plain pass in whole tensors, whatever the chunks: rows 40 to 79 and the outliers run
// exactly, all others before them are filled, and what follows the prompt is not looked at.
TEST_F(FilledForwardTest, AProbeSeesTheMostThatItsRowsAttendTo) {
  constexpr int64_t kPrompt = 80, kBegin = 40;
  const auto maps = RandomMaps();
  const model::ModelConfig& config = model_->config();
  const ridge::FillPlan plan = {kPrompt, kBegin, {0, 17}};
  const auto pass = runtime::SequencePass::Create(*model_, kTokens, kTokens).value();
  const auto fill = runtime::FillPass::Create(*model_, *maps, kTokens).value();
  const auto tensor = [&](int64_t rows, int64_t columns) {
    return backend_->Allocate(kernels::DType::kF32, {rows, columns}).value();
  };
  const auto hidden = tensor(kPrompt, config.hidden);
  ASSERT_TRUE(pass->Embed(absl::MakeConstSpan(documents_[1]).subspan(0, kPrompt), hidden.view()).ok());
  ASSERT_TRUE(pass->Forward({runtime::Positions(0, kPrompt), hidden.view(), 0, kSplit, {}}).ok());
  runtime::FillPass::Args args;
  args.rows.hidden = hidden.view().Rows(0, kBegin);
  const std::vector<int32_t> filled = runtime::Positions(0, kBegin),
                             own = runtime::Positions(kBegin, kPrompt);
  args.positions = filled;
  args.block_table = pass->block_table();
  args.cache = &pass->cache();
  args.workspace = &pass->workspace();
  ASSERT_TRUE(fill->Run(pass->stream(), args).ok());
  const std::vector<int32_t> exact = plan.ExactRows();
  const auto rows = tensor(static_cast<int64_t>(exact.size()), config.hidden);
  ASSERT_TRUE(pass->Gather(hidden.view(), exact, rows.view()).ok());
  std::vector<float> want(kPrompt);
  runtime::SequencePass::Layers layers{exact, rows.view(), kSplit, config.layers, {}};
  layers.on_query = [&](int layer, const kernels::TensorView& q) {
    return pass->WithBatch(own, [&](const kernels::Batch& batch) {
      const auto mass = tensor(config.heads_kv, kPrompt);
      const std::string zeros(mass.view().bytes(), '\0');
      EXPECT_TRUE(backend_->CopyFromHost(pass->stream(), zeros, mass.view()).ok());
      kernels::AttentionMassArgs mass_args;
      mass_args.batch = &batch;
      mass_args.q = q.Rows(2, kPrompt - kBegin);
      mass_args.cache = &pass->cache();
      mass_args.layer = layer;
      mass_args.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
      mass_args.reduction = kernels::MassReduction::kMax;
      mass_args.mass = mass.view();
      absl::Status status = backend_->AttentionMass(pass->stream(), mass_args);
      const std::vector<float> by_head = pass->Floats(mass.view()).value();
      for (size_t i = 0; i < by_head.size(); ++i) {
        want[i % kPrompt] = std::max(want[i % kPrompt], by_head[i]);
      }
      return status;
    });
  };
  ASSERT_TRUE(pass->Forward(layers).ok());
  for (int64_t chunk : {kTokens, int64_t{31}, int64_t{7}}) {
    const auto forward = Forward(chunk);
    const auto own_fill = runtime::FillPass::Create(*model_, *maps, chunk).value();
    ASSERT_TRUE(forward->Lower(documents_[1]).ok());
    EXPECT_EQ(forward->Probe(plan, *own_fill).value(), want) << "chunks of " << chunk;
    // It leaves nothing behind that a run after it would see.
    ASSERT_TRUE(forward->Late(ExactPlan(), nullptr).ok());
    const std::vector<double> exact_nll = forward->NextTokenNll(0, kTokens - 1).value();
    const auto fresh = Forward(chunk);
    ASSERT_TRUE(fresh->Lower(documents_[1]).ok());
    ASSERT_TRUE(fresh->Late(ExactPlan(), nullptr).ok());
    EXPECT_EQ(exact_nll, fresh->NextTokenNll(0, kTokens - 1).value());
  }
}

TEST_F(FilledForwardTest, NllIsMinusTheLogOfTheSoftmax) {
  const auto forward = Forward(64);
  ASSERT_TRUE(forward->Lower(documents_[3]).ok());
  ASSERT_TRUE(forward->Late(ExactPlan(), nullptr).ok());
  const std::vector<double> nll = forward->NextTokenNll(0, kTokens - 1).value();
  for (int64_t position : {int64_t{0}, int64_t{63}, int64_t{64}, kTokens - 2}) {
    const std::vector<float> logits = forward->Logits(position).value();
    double sum = 0;
    for (float logit : logits) sum += std::exp(double{logit});
    EXPECT_NEAR(nll[position], std::log(sum) - logits[documents_[3][position + 1]], 1e-6);
  }
}

// An unfolded map and its fold, W_k and W_v applied to it by hand, fill alike.
TEST_F(FilledForwardTest, UnfoldedMapsFillAsTheirFold) {
  const int d = model_->config().hidden, columns = 2 * model_->config().kv_width();
  const auto pass = runtime::SequencePass::Create(*model_, kTokens, kTokens).value();
  const auto rows = backend_->Allocate(kernels::DType::kF32, {d + 1, d}).value();
  const auto projected = backend_->Allocate(kernels::DType::kF32, {d + 1, columns}).value();
  base::Rng rng(9);
  std::vector<ridge::LayerMap> unfolded, folded;
  for (int layer = kSplit + 1; layer < model_->config().layers; ++layer) {
    ridge::LayerMap map;
    map.layer = layer;
    // Eighths, which bf16 holds exactly.
    for (int i = 0; i < d * d; ++i) map.weight.push_back(static_cast<float>(rng.NextBelow(17)) / 8 - 1);
    for (int i = 0; i < d; ++i) map.bias.push_back(static_cast<float>(rng.NextBelow(17)) / 8 - 1);
    std::vector<float> transposed((d + 1) * d);  // column i of the map, and its bias, as rows
    for (int i = 0; i < d; ++i) {
      for (int o = 0; o < d; ++o) transposed[i * d + o] = map.weight[o * d + i];
    }
    std::copy(map.bias.begin(), map.bias.end(), transposed.begin() + d * d);
    ASSERT_TRUE(backend_
                    ->CopyFromHost(pass->stream(),
                                   {reinterpret_cast<const char*>(transposed.data()), transposed.size() * 4},
                                   rows.view())
                    .ok());
    ASSERT_TRUE(model_->ProjectKvNormed(pass->stream(), layer, rows.view(), projected.view()).ok());
    const std::vector<float> product = pass->Floats(projected.view()).value();
    ridge::LayerMap fold;
    fold.layer = layer;
    for (int o = 0; o < columns; ++o) {
      for (int i = 0; i < d; ++i) fold.weight.push_back(product[i * columns + o]);
      fold.bias.push_back(product[d * columns + o]);
    }
    unfolded.push_back(std::move(map));
    folded.push_back(std::move(fold));
  }
  const auto a = Store("unfolded", Manifest(false), unfolded), b = Store("folded", Manifest(true), folded);
  const auto fill_a = runtime::FillPass::Create(*model_, *a, kTokens).value();
  const auto fill_b = runtime::FillPass::Create(*model_, *b, kTokens).value();
  const auto hidden = backend_->Allocate(kernels::DType::kF32, {kTokens, d}).value();
  const auto kv = backend_->Allocate(kernels::DType::kF32, {kTokens, columns}).value();
  ASSERT_TRUE(pass->Embed(documents_[0], hidden.view()).ok());
  ASSERT_TRUE(fill_a->Predict(pass->stream(), pass->workspace(), 2, {hidden.view(), {}}, kv.view()).ok());
  const std::vector<float> got = pass->Floats(kv.view()).value();
  ASSERT_TRUE(fill_b->Predict(pass->stream(), pass->workspace(), 2, {hidden.view(), {}}, kv.view()).ok());
  const std::vector<float> want = pass->Floats(kv.view()).value();
  double error = 0, energy = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - want[i], 2);
    energy += std::pow(double{want[i]}, 2);
  }
  EXPECT_LT(std::sqrt(error / energy), 1.0 / 256) << "the fold was stored in bf16";
}

}  // namespace
}  // namespace ridgefill::eval
