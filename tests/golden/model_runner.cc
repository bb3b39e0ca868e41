#include "tests/golden/model_runner.h"

#include <algorithm>
#include <numeric>

#include "engine/base/status.h"

namespace ridgefill::golden {

using kernels::Phase;

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::New(const std::string& path,
                                                              std::unique_ptr<kernels::Backend> backend,
                                                              int64_t max_tokens) {
  std::unique_ptr<ModelRunner> runner(new ModelRunner());
  runner->backend_ = std::move(backend);
  RF_ASSIGN_OR_RETURN(runner->source_, model::WeightSource::Open(path));
  RF_ASSIGN_OR_RETURN(runner->model_, model::Model::Load(*runner->source_, *runner->backend_, {}));
  RF_RETURN_IF_ERROR(runner->Allocate(max_tokens));
  return runner;
}

absl::Status ModelRunner::Allocate(int64_t max_tokens) {
  const model::ModelConfig& config = model_->config();
  const int64_t blocks = (max_tokens + kernels::kBlockTokens - 1) / kernels::kBlockTokens;
  stream_ = backend_->NewStream();
  RF_ASSIGN_OR_RETURN(cache_,
                      backend_->NewKvCache({config.layers, blocks, config.heads_kv, config.head_dim}));
  RF_ASSIGN_OR_RETURN(workspace_, model_->NewWorkspace(max_tokens));
  RF_ASSIGN_OR_RETURN(hidden_, backend_->Allocate(kernels::DType::kF32, {max_tokens, config.hidden}));
  // Not in order, so that a forgotten block table shows.
  block_table_.resize(blocks);
  std::iota(block_table_.rbegin(), block_table_.rend(), 0);
  return absl::OkStatus();
}

absl::Status ModelRunner::Embed(absl::Span<const int32_t> ids) {
  RF_ASSIGN_OR_RETURN(kernels::Tensor device_ids,
                      backend_->Allocate(kernels::DType::kI32, {static_cast<int64_t>(ids.size())}));
  const auto bytes =
      absl::MakeConstSpan(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
  RF_RETURN_IF_ERROR(backend_->CopyFromHost(*stream_, bytes, device_ids.view()));
  RF_RETURN_IF_ERROR(
      model_->Embed(*stream_, device_ids.view(), hidden({0, static_cast<int64_t>(ids.size())})));
  return backend_->Synchronize(*stream_);
}

absl::StatusOr<std::unique_ptr<kernels::Batch>> ModelRunner::NewBatch(Range rows, Phase phase) {
  std::vector<int32_t> positions(rows.size());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(rows.begin));
  const kernels::SequenceRows sequence{0, rows.size(), block_table_};
  return backend_->NewBatch({positions, absl::MakeConstSpan(&sequence, 1), phase}, &model_->rope());
}

absl::Status ModelRunner::Forward(Range rows, Range layers, Phase phase) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Batch> batch, NewBatch(rows, phase));
  model::ForwardArgs args;
  args.batch = batch.get();
  args.cache = cache_.get();
  args.phase = phase;
  args.hidden = hidden(rows);
  args.layer_begin = static_cast<int>(layers.begin);
  args.layer_end = static_cast<int>(layers.end);
  args.workspace = workspace_.get();
  RF_RETURN_IF_ERROR(model_->Forward(*stream_, args));
  return backend_->Synchronize(*stream_);
}

absl::Status ModelRunner::ForwardChunked(Range rows, int64_t chunk, Phase phase) {
  for (int64_t begin = rows.begin; begin < rows.end; begin += chunk) {
    RF_RETURN_IF_ERROR(Forward({begin, std::min(begin + chunk, rows.end)}, {0, layers()}, phase));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ModelRunner::Logits(Range rows, Phase phase) {
  const int64_t vocab = model_->config().vocab;
  RF_ASSIGN_OR_RETURN(kernels::Tensor device, backend_->Allocate(kernels::DType::kF32, {rows.size(), vocab}));
  RF_RETURN_IF_ERROR(model_->Logits(*stream_, *workspace_, phase, hidden(rows), device.view()));
  std::vector<float> logits(rows.size() * vocab);
  RF_RETURN_IF_ERROR(backend_->CopyToHost(
      *stream_, device.view(),
      absl::MakeSpan(reinterpret_cast<char*>(logits.data()), logits.size() * sizeof(float))));
  RF_RETURN_IF_ERROR(backend_->Synchronize(*stream_));
  return logits;
}

absl::StatusOr<std::string> ModelRunner::HiddenBytes(Range rows) {
  std::string bytes(hidden(rows).bytes(), '\0');
  RF_RETURN_IF_ERROR(backend_->CopyToHost(*stream_, hidden(rows), absl::MakeSpan(bytes)));
  RF_RETURN_IF_ERROR(backend_->Synchronize(*stream_));
  return bytes;
}

absl::StatusOr<std::string> ModelRunner::KvBytes(int layer, Range rows) {
  const kernels::KvSpan span{layer, block_table_, rows.begin, rows.size()};
  std::string bytes(span.bytes(cache_->spec()), '\0');
  RF_RETURN_IF_ERROR(backend_->ReadKv(*stream_, *cache_, span, absl::MakeSpan(bytes)));
  RF_RETURN_IF_ERROR(backend_->Synchronize(*stream_));
  return bytes;
}

absl::StatusOr<std::unique_ptr<kernels::Backend>> MakeBackend(const std::string& name) {
  if (name == "reference") return kernels::MakeReferenceBackend();
  const size_t slash = name.find('/');
  return kernels::MakeCpuBackend(
      {.threads = 0, .isa = slash == std::string::npos ? "" : name.substr(slash + 1)});
}

std::vector<std::string> BackendNames() {
  std::vector<std::string> names = {"reference"};
  for (const char* isa :
       {"avx2", "avx512", "avx512_bf16", "avx512_bf16_emulated", "amx_bf16", "amx_bf16_emulated"}) {
    const std::string name = std::string("cpu/") + isa;
    if (MakeBackend(name).ok()) names.push_back(name);
  }
  return names;
}

}  // namespace ridgefill::golden
