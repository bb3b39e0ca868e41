#include "tests/engine/runtime/tiny_models.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/rng.h"
#include "engine/cache/block_pool.h"
#include "engine/runtime/host_bytes.h"

namespace ridgefill::runtime {
namespace {

using kernels::DType;
using kernels::Phase;
using kernels::TensorView;

constexpr char kCheckpoint[] = "tests/data/golden/tiny/llama";

void Ok(const absl::Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  RF_CHECK(status.ok());
}

template <typename T>
T Ok(absl::StatusOr<T> value) {
  Ok(value.status());
  return *std::move(value);
}

std::vector<int32_t> AllPositions(size_t count) {
  std::vector<int32_t> positions(count);
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

// A sequence alone in a cache of its own.
class Plain {
 public:
  Plain(const model::Model& model, int64_t tokens)
      : model_(model), backend_(model.backend()), stream_(backend_.NewStream()) {
    const model::ModelConfig& config = model.config();
    blocks_.resize(cache::BlocksFor(tokens));
    // Not the order that a pool would give: a result must not depend on where blocks lie.
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i] = static_cast<int32_t>(blocks_.size() - 1 - i);
    kernels::KvCacheSpec spec{config.layers, static_cast<int64_t>(blocks_.size()), config.heads_kv,
                              config.head_dim};
    cache_ = Ok(backend_.NewKvCache(spec));
    workspace_ = Ok(model.NewWorkspace(tokens));
  }

  kernels::Tensor New(DType dtype, int64_t rows, int64_t columns) {
    return Ok(backend_.Allocate(dtype, {rows, columns}));
  }
  kernels::Tensor Embed(const std::vector<int32_t>& tokens) {
    const int64_t rows = static_cast<int64_t>(tokens.size());
    kernels::Tensor ids = Ok(backend_.Allocate(DType::kI32, {rows}));
    kernels::Tensor hidden = New(DType::kF32, rows, model_.config().hidden);
    Ok(backend_.CopyFromHost(*stream_, HostBytes(absl::MakeConstSpan(tokens)), ids.view()));
    Ok(model_.Embed(*stream_, ids.view(), hidden.view()));
    return hidden;
  }
  std::unique_ptr<kernels::Batch> Batch(const std::vector<int32_t>& positions, Phase phase) {
    const kernels::SequenceRows rows{0, static_cast<int64_t>(positions.size()), blocks_};
    return Ok(backend_.NewBatch({positions, absl::MakeConstSpan(&rows, 1), phase}, &model_.rope()));
  }
  using OnQuery = std::function<absl::Status(int layer, const TensorView& q)>;
  void Forward(const std::vector<int32_t>& positions, const TensorView& hidden, int begin, int end,
               Phase phase, const OnQuery& on_query = {}) {
    const auto batch = Batch(positions, phase);
    model::ForwardArgs args;
    args.batch = batch.get();
    args.cache = cache_.get();
    args.phase = phase;
    args.hidden = hidden;
    args.layer_begin = begin;
    args.layer_end = end;
    args.on_query = on_query;
    args.workspace = workspace_.get();
    Ok(model_.Forward(*stream_, args));
  }
  // One mass for each layer and KV head; the highest mean counts.
  std::vector<float> Scores(const std::vector<int32_t>& tokens, int split) {
    const model::ModelConfig& config = model_.config();
    const int64_t count = static_cast<int64_t>(tokens.size());
    const std::vector<int32_t> all = AllPositions(count);
    const std::vector<int32_t> last(all.begin() + std::max<int64_t>(0, count - 32), all.end());
    const auto batch = Batch(all, Phase::kPrompt), last_batch = Batch(last, Phase::kPrompt);
    const int first = std::max(0, split - 4);
    std::vector<float> most(count);
    kernels::Tensor hidden = Embed(tokens);
    model::ForwardArgs args;
    args.batch = batch.get();
    args.cache = cache_.get();
    args.hidden = hidden.view();
    args.layer_end = split;
    args.workspace = workspace_.get();
    args.on_query = [&](int layer, const TensorView& q) {
      if (layer < first) return absl::OkStatus();
      kernels::Tensor mass = New(DType::kF32, config.heads_kv, count);
      const std::vector<float> zeros(mass.view().elements());
      Ok(backend_.CopyFromHost(*stream_, HostBytes(absl::MakeConstSpan(zeros)), mass.view()));
      kernels::AttentionMassArgs mass_args;
      mass_args.batch = last_batch.get();
      mass_args.q = q.Rows(last.front(), static_cast<int64_t>(last.size()));
      mass_args.cache = cache_.get();
      mass_args.layer = layer;
      mass_args.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
      mass_args.mass = mass.view();
      Ok(backend_.AttentionMass(*stream_, mass_args));
      const std::vector<float> received = Floats(mass.view());
      for (size_t i = 0; i < received.size(); ++i) most[i % count] = std::max(most[i % count], received[i]);
      return absl::OkStatus();
    };
    Ok(model_.Forward(*stream_, args));
    const int64_t queries = static_cast<int64_t>(last.size()) * config.heads_q / config.heads_kv;
    for (float& score : most) score /= static_cast<float>(queries);
    return most;
  }
  // One mass for each layer and head, all of them reduced here.
  std::vector<float> Probe(const PlainFill& fill, const TensorView& hidden) {
    Fill(fill, hidden);
    const model::ModelConfig& config = model_.config();
    const int split = fill.maps->manifest().split;
    const std::vector<int32_t> rows = fill.plan.ExactRows();
    const std::vector<int32_t> own(rows.begin() + static_cast<int64_t>(fill.plan.outliers.size()),
                                   rows.end());
    const auto own_batch = Batch(own, Phase::kPrompt);
    std::vector<float> most(fill.plan.tokens);
    kernels::Tensor exact = Gather(hidden, rows);
    Forward(rows, exact.view(), split, config.layers, Phase::kPrompt, [&](int layer, const TensorView& q) {
      kernels::Tensor mass = New(DType::kF32, config.heads_kv, fill.plan.tokens);
      const std::vector<float> zeros(mass.view().elements());
      Ok(backend_.CopyFromHost(*stream_, HostBytes(absl::MakeConstSpan(zeros)), mass.view()));
      kernels::AttentionMassArgs args;
      args.batch = own_batch.get();
      args.q = q.Rows(static_cast<int64_t>(fill.plan.outliers.size()), static_cast<int64_t>(own.size()));
      args.cache = cache_.get();
      args.layer = layer;
      args.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
      args.reduction = kernels::MassReduction::kMax;
      args.mass = mass.view();
      Ok(backend_.AttentionMass(*stream_, args));
      const std::vector<float> received = Floats(mass.view());
      for (size_t i = 0; i < received.size(); ++i) {
        most[i % most.size()] = std::max(most[i % most.size()], received[i]);
      }
      return absl::OkStatus();
    });
    return most;
  }
  void Fill(const PlainFill& fill, const TensorView& hidden) {
    for (int64_t row = 0; row < fill.plan.tail_begin; ++row) FillRow(fill, hidden, row);
  }
  // A row by itself: nothing of groups and orders.
  void FillRow(const PlainFill& fill, const TensorView& hidden, int64_t row) {
    const std::vector<int32_t> position = {static_cast<int32_t>(row)};
    const auto batch = Batch(position, Phase::kPrompt);
    const ridge::MapSetManifest& m = fill.maps->manifest();
    const auto& outliers = fill.plan.outliers;
    const bool after_outlier = std::find(outliers.begin(), outliers.end(), row - 1) != outliers.end();
    const DType dtype = backend_.capabilities().activation_dtype;
    kernels::Tensor x = New(dtype, 1, m.hidden), before = New(dtype, 1, m.hidden);
    kernels::Tensor kv = New(m.previous_row ? DType::kF32 : dtype, 1, 2LL * model_.config().kv_width());
    kernels::Tensor exact = New(dtype, 1, 2LL * model_.config().kv_width());
    MapInput(m, hidden.Rows(row, 1), x.view());
    MapInput(m, hidden.Rows(ridge::PreviousRow(row, after_outlier), 1), before.view());
    const int map = m.mixture == 1 ? 0 : BestMap(fill, x.view());
    Ok(model_.ProjectKv(*stream_, *workspace_, m.split, hidden.Rows(row, 1), exact.view()));
    Ok(model_.WriteKv(*stream_, m.split, exact.view(), *batch, *cache_));
    for (int layer = m.split + 1; layer < m.layers; ++layer) {
      Ok(fill.maps->Apply(*stream_, layer, map, {x.view(), before.view()}, kv.view()));
      Ok(model_.WriteKv(*stream_, layer, kv.view(), *batch, *cache_));
    }
  }
  void MapInput(const ridge::MapSetManifest& m, const TensorView& hidden, const TensorView& x) {
    if (!m.normalised) return Ok(backend_.Cast(*stream_, {hidden, x}));
    const std::vector<float> host(m.hidden, 1);
    kernels::Tensor ones = Ok(backend_.Allocate(DType::kF32, {m.hidden}));
    Ok(backend_.CopyFromHost(*stream_, HostBytes(absl::MakeConstSpan(host)), ones.view()));
    Ok(backend_.RmsNorm(*stream_, {hidden, ones.view(), ridge::kInputEpsilon, x}));
  }
  int BestMap(const PlainFill& fill, const TensorView& x) {
    kernels::Tensor scores = New(DType::kF32, 1, fill.maps->manifest().mixture);
    Ok(fill.maps->Score(*stream_, x, scores.view()));
    const std::vector<float> values = Floats(scores.view());
    return static_cast<int>(std::max_element(values.begin(), values.end()) - values.begin());
  }
  kernels::Tensor Gather(const TensorView& x, const std::vector<int32_t>& index) {
    kernels::Tensor ids = Ok(backend_.Allocate(DType::kI32, {static_cast<int64_t>(index.size())}));
    kernels::Tensor out = New(DType::kF32, static_cast<int64_t>(index.size()), x.dim(1));
    Ok(backend_.CopyFromHost(*stream_, HostBytes(absl::MakeConstSpan(index)), ids.view()));
    Ok(backend_.GatherRows(*stream_, {x, ids.view(), out.view()}));
    return out;
  }
  std::vector<float> Floats(const TensorView& x) {
    std::vector<float> out(x.elements());
    Ok(backend_.CopyToHost(*stream_, x, HostBytes(absl::MakeSpan(out))));
    return out;
  }
  std::vector<float> Logits(const TensorView& hidden, Phase phase) {
    kernels::Tensor logits = New(DType::kF32, hidden.dim(0), model_.config().vocab);
    Ok(model_.Logits(*stream_, *workspace_, phase, hidden, logits.view()));
    return Floats(logits.view());
  }
  std::vector<float> RowNorms(const TensorView& hidden) {
    kernels::Tensor norms = Ok(backend_.Allocate(DType::kF32, {hidden.dim(0)}));
    Ok(backend_.RowNorm(*stream_, {hidden, norms.view()}));
    return Floats(norms.view());
  }

 private:
  const model::Model& model_;
  kernels::Backend& backend_;
  std::unique_ptr<kernels::Stream> stream_;
  std::vector<int32_t> blocks_;
  std::unique_ptr<kernels::KvCache> cache_;
  std::unique_ptr<model::Workspace> workspace_;
};

// The likeliest token, ties to the lower id.
sampling::SampleResult Greedy(absl::Span<const float> logits) {
  sampling::SampleResult result;
  for (size_t id = 1; id < logits.size(); ++id) {
    if (logits[id] > logits[result.token]) result.token = static_cast<int32_t>(id);
  }
  const sampling::Logprobs logprobs = Ok(sampling::ComputeLogprobs(logits, result.token, 20));
  result.logprob = logprobs.logprob;
  result.top_logprobs = logprobs.top;
  return result;
}

std::vector<float> PromptLogprobs(const std::vector<float>& logits, const std::vector<int32_t>& tokens,
                                  int vocab) {
  std::vector<float> out;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    const absl::Span<const float> row(logits.data() + i * vocab, vocab);
    out.push_back(Ok(sampling::ComputeLogprobs(row, tokens[i + 1], 0)).logprob);
  }
  return out;
}

}  // namespace

TinyModel::TinyModel(std::unique_ptr<kernels::Backend> backend, int layer_end)
    : backend_(std::move(backend)) {
  const auto source = Ok(model::WeightSource::Open(kCheckpoint));
  model::LoadOptions options;
  options.layer_end = layer_end;
  model_ = Ok(model::Model::Load(*source, *backend_, options));
}

Hello TinyModel::MakeHello(const std::vector<MapSetIdentity>& maps) const {
  Hello hello;
  hello.model = {"tiny", "llama", "tiny dimensions", "tokenizer digest", "weights digest"};
  hello.maps = maps;
  hello.cache_layout = CacheLayout(model_->config());
  return hello;
}

std::unique_ptr<ridge::DeviceMaps> TinyModel::RandomMaps(int split, float outlier_threshold,
                                                         MapKind kind) const {
  const bool folded = kind != MapKind::kUnfolded;
  const bool mixed = kind == MapKind::kMixture || kind == MapKind::kMixtureAndPreviousRow;
  const model::ModelConfig& config = model_->config();
  ridge::MapSetManifest manifest;
  manifest.model = MakeHello().model;
  manifest.layers = config.layers;
  manifest.hidden = config.hidden;
  manifest.kv_width = config.kv_width();
  manifest.split = split;
  manifest.folded = folded;
  manifest.outlier_threshold = outlier_threshold;
  manifest.mixture = mixed ? 3 : 1;
  manifest.previous_row = kind == MapKind::kPreviousRow || kind == MapKind::kMixtureAndPreviousRow;
  manifest.normalised = mixed || kind == MapKind::kNormalised;
  base::Rng rng(split);
  const auto random = [&](int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(rng.NextDouble() - 0.5);
    return values;
  };
  const int64_t outputs = folded ? 2LL * manifest.mixture * config.kv_width() : config.hidden;
  std::vector<ridge::LayerMap> maps;
  for (int layer = split + 1; layer < config.layers; ++layer) {
    maps.push_back({layer, random(outputs * ridge::MapInputs(manifest)), random(outputs)});
  }
  ridge::Gate gate;
  if (mixed) gate = {random(3LL * config.hidden), {0, 0, 0}};
  const std::string folder = absl::StrCat(testing::TempDir(), "/runtime_maps.", getpid(), ".", split);
  Ok(ridge::SaveMapSet(folder, manifest, maps, gate));
  const auto set = Ok(ridge::MapSet::Load(folder));
  auto device = Ok(ridge::DeviceMaps::Load(*set, *backend_));
  std::filesystem::remove_all(folder);
  return device;
}

std::vector<int32_t> RandomTokens(uint64_t seed, int64_t count, int vocab) {
  base::Rng rng(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.NextBelow(vocab));
  return tokens;
}

void ExpectSame(const Answer& got, const Answer& want) {
  EXPECT_EQ(got.prompt_logprobs, want.prompt_logprobs);
  ASSERT_EQ(got.tokens.size(), want.tokens.size());
  for (size_t i = 0; i < want.tokens.size(); ++i) {
    ASSERT_EQ(got.tokens[i].token, want.tokens[i].token) << "token " << i;
    ASSERT_EQ(got.tokens[i].logprob, want.tokens[i].logprob) << "token " << i;
    ASSERT_EQ(got.tokens[i].top_logprobs.size(), want.tokens[i].top_logprobs.size());
    for (size_t j = 0; j < want.tokens[i].top_logprobs.size(); ++j) {
      ASSERT_EQ(got.tokens[i].top_logprobs[j].token, want.tokens[i].top_logprobs[j].token);
      ASSERT_EQ(got.tokens[i].top_logprobs[j].logprob, want.tokens[i].top_logprobs[j].logprob);
    }
  }
}

Answer PlainAnswer(const TinyModel& tiny, const std::vector<int32_t>& tokens, int64_t max_tokens,
                   const PlainFill* fill) {
  const int layers = tiny.layers(), vocab = tiny.vocab();
  const int64_t prompt = static_cast<int64_t>(tokens.size());
  Plain plain(tiny.model(), prompt + max_tokens);
  Answer answer;
  kernels::Tensor hidden = plain.Embed(tokens);
  std::vector<float> last;
  if (fill == nullptr) {
    plain.Forward(AllPositions(prompt), hidden.view(), 0, layers, Phase::kPrompt);
    const std::vector<float> logits = plain.Logits(hidden.view(), Phase::kPrompt);
    answer.prompt_logprobs = PromptLogprobs(logits, tokens, vocab);
    last.assign(logits.end() - vocab, logits.end());
  } else {
    const int split = fill->maps->manifest().split;
    plain.Forward(AllPositions(prompt), hidden.view(), 0, split, Phase::kPrompt);
    plain.Fill(*fill, hidden.view());
    const std::vector<int32_t> rows = fill->plan.ExactRows();
    kernels::Tensor exact = plain.Gather(hidden.view(), rows);
    plain.Forward(rows, exact.view(), split, layers, Phase::kPrompt);
    last = plain.Logits(exact.view().Rows(exact.view().dim(0) - 1, 1), Phase::kPrompt);
  }
  answer.tokens.push_back(Greedy(last));
  while (static_cast<int64_t>(answer.tokens.size()) < max_tokens) {
    const int32_t position = static_cast<int32_t>(prompt + answer.tokens.size() - 1);
    kernels::Tensor row = plain.Embed({answer.tokens.back().token});
    plain.Forward({position}, row.view(), 0, layers, Phase::kDecode);
    answer.tokens.push_back(Greedy(plain.Logits(row.view(), Phase::kDecode)));
  }
  return answer;
}

std::vector<float> PlainRowNorms(const TinyModel& tiny, const std::vector<int32_t>& tokens, int split) {
  Plain plain(tiny.model(), static_cast<int64_t>(tokens.size()));
  kernels::Tensor hidden = plain.Embed(tokens);
  plain.Forward(AllPositions(tokens.size()), hidden.view(), 0, split, Phase::kPrompt);
  return plain.RowNorms(hidden.view());
}

std::vector<float> PlainProbe(const TinyModel& tiny, const std::vector<int32_t>& tokens,
                              const PlainFill& fill) {
  Plain plain(tiny.model(), static_cast<int64_t>(tokens.size()));
  kernels::Tensor hidden = plain.Embed(tokens);
  plain.Forward(AllPositions(tokens.size()), hidden.view(), 0, fill.maps->manifest().split, Phase::kPrompt);
  return plain.Probe(fill, hidden.view());
}

std::vector<float> PlainScores(const TinyModel& tiny, const std::vector<int32_t>& tokens, int split) {
  Plain plain(tiny.model(), static_cast<int64_t>(tokens.size()));
  return plain.Scores(tokens, split);
}

}  // namespace ridgefill::runtime
