// Runs one sequence through a model on any backend, layer by layer and row by row as a test asks for it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/model.h"
#include "engine/model/weight_source.h"
#include "kernels/api/backend.h"

namespace ridgefill::golden {

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

class ModelRunner {
 public:
  // `path`: a model. Sequences of at most `max_tokens`.
  static absl::StatusOr<std::unique_ptr<ModelRunner>> New(const std::string& path,
                                                          std::unique_ptr<kernels::Backend> backend,
                                                          int64_t max_tokens);

  const model::Model& model() const { return *model_; }
  const model::WeightSource& source() const { return *source_; }
  kernels::Backend& backend() { return *backend_; }
  kernels::Stream& stream() { return *stream_; }
  kernels::KvCache& cache() { return *cache_; }
  model::Workspace& workspace() { return *workspace_; }
  int layers() const { return model_->config().layers; }

  // The residual of every row of the sequence, f32 [max_tokens, d]; row = position.
  kernels::TensorView hidden(Range rows) const { return hidden_.view().Rows(rows.begin, rows.size()); }
  // Starts a sequence: hidden = embedding of ids.
  absl::Status Embed(absl::Span<const int32_t> ids);
  absl::Status Forward(Range rows, Range layers, kernels::Phase phase = kernels::Phase::kPrompt);
  // All layers over `rows`, in chunks.
  absl::Status ForwardChunked(Range rows, int64_t chunk, kernels::Phase phase = kernels::Phase::kPrompt);
  absl::StatusOr<std::unique_ptr<kernels::Batch>> NewBatch(Range rows, kernels::Phase phase);

  // [rows, vocab]
  absl::StatusOr<std::vector<float>> Logits(Range rows, kernels::Phase phase = kernels::Phase::kPrompt);
  absl::StatusOr<std::string> HiddenBytes(Range rows);
  // Canonical K and V of one layer.
  absl::StatusOr<std::string> KvBytes(int layer, Range rows);

 private:
  ModelRunner() = default;
  absl::Status Allocate(int64_t max_tokens);

  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<model::WeightSource> source_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<kernels::KvCache> cache_;
  std::unique_ptr<model::Workspace> workspace_;
  kernels::Tensor hidden_;
  std::vector<int32_t> block_table_;
};

// A backend by name: "reference", "cpu" or "cpu/<isa>".
absl::StatusOr<std::unique_ptr<kernels::Backend>> MakeBackend(const std::string& name);
// The names above that this build and machine can run.
std::vector<std::string> BackendNames();

}  // namespace ridgefill::golden
