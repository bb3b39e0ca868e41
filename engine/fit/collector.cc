#include "engine/fit/collector.h"

#include <algorithm>
#include <cmath>

#include "engine/base/float16.h"
#include "engine/base/status.h"
#include "engine/runtime/host_bytes.h"

namespace ridgefill::fit {
namespace {

using kernels::DType;
using kernels::TensorView;

// Every which row's queries are asked where they look: a mean over a quarter of them says as much.
constexpr int64_t kQueryStride = 4;

bool IsAsked(int64_t position, int64_t distance) {
  return position >= distance && position % kQueryStride == kQueryStride - 1;
}

// How many of the queries that are asked lie at least `distance` behind a row.
int64_t LaterQueries(int64_t row, int64_t tokens, int64_t distance) {
  int64_t count = 0;
  for (int64_t position = row + distance; position < tokens; ++position) count += IsAsked(position, distance);
  return count;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collector>> Collector::Create(const model::Model& model, const RowsKey& key,
                                                             int64_t max_tokens, int64_t chunk_rows) {
  const model::ModelConfig& config = model.config();
  kernels::Backend& backend = model.backend();
  std::unique_ptr<Collector> out(new Collector(key));
  RF_ASSIGN_OR_RETURN(out->pass_, runtime::SequencePass::Create(model, max_tokens, chunk_rows));
  RF_ASSIGN_OR_RETURN(out->hidden_, backend.Allocate(DType::kF32, {chunk_rows, config.hidden}));
  RF_ASSIGN_OR_RETURN(out->queries_,
                      backend.Allocate(backend.capabilities().activation_dtype,
                                       {chunk_rows, int64_t{config.heads_q} * config.head_dim}));
  for (int layer = key.splits.front() + 1; layer < config.layers; ++layer) {
    RF_ASSIGN_OR_RETURN(auto mass, backend.Allocate(DType::kF32, {config.heads_kv, max_tokens}));
    out->mass_.push_back(std::move(mass));
  }
  return out;
}

absl::StatusOr<DocumentRows> Collector::Collect(absl::Span<const int32_t> ids) {
  DocumentRows out;
  out.tokens = static_cast<int64_t>(ids.size());
  for (const kernels::Tensor& mass : mass_) {
    const std::vector<float> zeros(mass.view().elements());
    RF_RETURN_IF_ERROR(pass_->backend().CopyFromHost(
        pass_->stream(), runtime::HostBytes(absl::MakeConstSpan(zeros)), mass.view()));
    RF_RETURN_IF_ERROR(pass_->backend().Synchronize(pass_->stream()));
  }
  for (int64_t begin = 0; begin < out.tokens; begin += pass_->max_rows()) {
    RF_RETURN_IF_ERROR(
        Chunk(ids.subspan(begin, std::min(pass_->max_rows(), out.tokens - begin)), begin, out));
  }
  RF_RETURN_IF_ERROR(ReadMass(out));
  return out;
}

absl::Status Collector::Chunk(absl::Span<const int32_t> ids, int64_t begin, DocumentRows& out) {
  const int64_t rows = static_cast<int64_t>(ids.size());
  const std::vector<int32_t> positions = runtime::Positions(begin, begin + rows);
  const TensorView hidden = hidden_.view().Rows(0, rows);
  RF_RETURN_IF_ERROR(pass_->Embed(ids, hidden));
  int layer = 0;
  for (int split : key_.splits) {
    RF_RETURN_IF_ERROR(LateLayers(positions, hidden, layer, split, out));
    RF_ASSIGN_OR_RETURN(const std::vector<float> values, pass_->Floats(hidden));
    std::vector<float>& to = out.hidden[split];
    to.insert(to.end(), values.begin(), values.end());
    layer = split;
  }
  return LateLayers(positions, hidden, layer, key_.layers, out);
}

// Of layers above the lowest split K, V and where the queries look are kept.
absl::Status Collector::LateLayers(const std::vector<int32_t>& positions, const TensorView& hidden, int begin,
                                   int end, DocumentRows& out) {
  runtime::SequencePass::Layers layers{positions, hidden, begin, end};
  layers.on_kv = [&](int layer, const TensorView& kv) -> absl::Status {
    if (layer <= key_.splits.front()) return absl::OkStatus();
    RF_ASSIGN_OR_RETURN(const std::vector<float> values, pass_->Floats(kv));
    std::vector<uint16_t>& to = out.kv[layer];
    for (float value : values) to.push_back(base::F32ToBF16(value));
    return absl::OkStatus();
  };
  layers.on_query = [&](int layer, const TensorView& q) {
    return layer <= key_.splits.front() ? absl::OkStatus() : AddMass(layer, positions, q);
  };
  return pass_->Forward(layers);
}

absl::Status Collector::AddMass(int layer, const std::vector<int32_t>& positions, const TensorView& q) {
  std::vector<int32_t> rows, asked;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (!IsAsked(positions[i], key_.mass_distance)) continue;
    rows.push_back(static_cast<int32_t>(i));
    asked.push_back(positions[i]);
  }
  if (rows.empty()) return absl::OkStatus();
  const TensorView queries = queries_.view().Rows(0, static_cast<int64_t>(rows.size()));
  RF_RETURN_IF_ERROR(pass_->Gather(q, rows, queries));
  return pass_->WithBatch(asked, [&](const kernels::Batch& batch) {
    kernels::AttentionMassArgs args;
    args.batch = &batch;
    args.q = queries;
    args.cache = &pass_->cache();
    args.layer = layer;
    args.scale = 1.0f / std::sqrt(static_cast<float>(pass_->model().config().head_dim));
    args.min_distance = key_.mass_distance;
    args.mass = mass_[layer - key_.splits.front() - 1].view();
    return pass_->backend().AttentionMass(pass_->stream(), args);
  });
}

absl::Status Collector::ReadMass(DocumentRows& out) {
  std::vector<float> per_query(out.tokens);
  for (int64_t row = 0; row < out.tokens; ++row) {
    const int64_t count = LaterQueries(row, out.tokens, key_.mass_distance);
    per_query[row] = count > 0 ? 1.0f / static_cast<float>(count) : 0.0f;
  }
  for (size_t i = 0; i < mass_.size(); ++i) {
    const TensorView view = mass_[i].view();
    RF_ASSIGN_OR_RETURN(const std::vector<float> values, pass_->Floats(view));
    std::vector<float>& to = out.mass[key_.splits.front() + 1 + static_cast<int>(i)];
    for (int64_t head = 0; head < view.dim(0); ++head) {
      for (int64_t row = 0; row < out.tokens; ++row) {
        to.push_back(values[head * view.dim(1) + row] * per_query[row]);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace ridgefill::fit
