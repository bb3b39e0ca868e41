#include "engine/fit/held_out_report.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/base/status.h"
#include "engine/fit/accumulator.h"
#include "engine/runtime/fill_pass.h"

namespace ridgefill::fit {
namespace {

using kernels::TensorView;

// Of one layer and one kind of fill, over all rows so far.
struct Score {
  double cosines = 0;
  int64_t heads = 0;
  double error = 0, energy = 0;  // squared, of V

  // want, got: [rows, 2 * kv_width], K then V.
  void Add(const std::vector<float>& want, const std::vector<float>& got, int64_t kv_width, int head_dim) {
    for (size_t row = 0; row < want.size(); row += 2 * kv_width) {
      for (int64_t head = 0; head < kv_width; head += head_dim)
        AddCosine(&want[row + head], &got[row + head], head_dim);
      AddError(&want[row + kv_width], &got[row + kv_width], kv_width);
    }
  }

 private:
  void AddCosine(const float* want, const float* got, int count) {
    double dot = 0, want2 = 0, got2 = 0;
    for (int i = 0; i < count; ++i) {
      dot += double{want[i]} * got[i];
      want2 += double{want[i]} * want[i];
      got2 += double{got[i]} * got[i];
    }
    cosines += dot / std::max(std::sqrt(want2 * got2), 1e-30);
    ++heads;
  }

  void AddError(const float* want, const float* got, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
      energy += double{want[i]} * want[i];
    }
  }
};

class Reporter {
 public:
  static absl::StatusOr<std::unique_ptr<Reporter>> Create(const model::Model& model,
                                                          const ridge::DeviceMaps& maps, int64_t max_tokens,
                                                          int64_t rows) {
    const ridge::MapSetManifest& manifest = maps.manifest();
    auto out = std::make_unique<Reporter>(model, manifest.split);
    kernels::Backend& backend = model.backend();
    RF_ASSIGN_OR_RETURN(
        out->walker_, RowWalker::Create(model, manifest.split, manifest.outlier_threshold, max_tokens, rows));
    RF_ASSIGN_OR_RETURN(out->ridge_, runtime::FillPass::Create(model, maps, rows));
    RF_ASSIGN_OR_RETURN(out->identity_, runtime::FillPass::CreateIdentity(model, manifest.split, rows));
    RF_ASSIGN_OR_RETURN(out->workspace_, model.NewWorkspace(rows));
    RF_ASSIGN_OR_RETURN(out->predicted_, backend.Allocate(backend.capabilities().activation_dtype,
                                                          {rows, 2 * int64_t{model.config().kv_width()}}));
    return out;
  }

  Reporter(const model::Model& model, int split)
      : config_(model.config()),
        split_(split),
        ridge_scores_(config_.layers),
        identity_scores_(config_.layers) {}

  absl::Status Add(absl::Span<const int32_t> document) {
    TensorView hidden;
    return walker_->Walk(
        document,
        [&](const ChunkRows& rows) {
          hidden = rows.hidden;
          return absl::OkStatus();
        },
        [&](int layer, const TensorView& kv) -> absl::Status {
          RF_ASSIGN_OR_RETURN(const std::vector<float> want, walker_->pass().Floats(kv));
          RF_RETURN_IF_ERROR(AddFill(*ridge_, layer, hidden, want, ridge_scores_[layer]));
          return AddFill(*identity_, layer, hidden, want, identity_scores_[layer]);
        });
  }

  std::vector<ridge::LayerReport> Result() const {
    std::vector<ridge::LayerReport> out;
    for (int layer = split_ + 1; layer < config_.layers; ++layer) {
      const Score &filled = ridge_scores_[layer], &identity = identity_scores_[layer];
      ridge::LayerReport report;
      report.layer = layer;
      report.k_cosine = filled.cosines / std::max<int64_t>(1, filled.heads);
      report.v_error = std::sqrt(filled.error / std::max(filled.energy, 1e-30));
      report.identity_k_cosine = identity.cosines / std::max<int64_t>(1, identity.heads);
      report.identity_v_error = std::sqrt(identity.error / std::max(identity.energy, 1e-30));
      out.push_back(report);
    }
    return out;
  }

 private:
  absl::Status AddFill(runtime::FillPass& fill, int layer, const TensorView& hidden,
                       const std::vector<float>& want, Score& score) {
    runtime::SequencePass& pass = walker_->pass();
    const TensorView kv = predicted_.view().Rows(0, hidden.dim(0));
    RF_RETURN_IF_ERROR(fill.Predict(pass.stream(), *workspace_, layer, hidden, kv));
    RF_ASSIGN_OR_RETURN(const std::vector<float> got, pass.Floats(kv));
    score.Add(want, got, config_.kv_width(), config_.head_dim);
    return absl::OkStatus();
  }

  const model::ModelConfig& config_;
  const int split_;
  std::unique_ptr<RowWalker> walker_;
  std::unique_ptr<runtime::FillPass> ridge_, identity_;
  std::unique_ptr<model::Workspace> workspace_;        // the walker's is in use while its targets are shown
  kernels::Tensor predicted_;                          // activation dtype [chunk, 2 * kv_width]
  std::vector<Score> ridge_scores_, identity_scores_;  // by layer
};

}  // namespace

absl::StatusOr<std::vector<ridge::LayerReport>> HeldOutReport(const model::Model& model,
                                                              const ridge::DeviceMaps& maps,
                                                              absl::Span<const Document> documents,
                                                              const ReportOptions& options) {
  size_t longest = 1;
  for (const Document& document : documents) longest = std::max(longest, document.ids.size());
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Reporter> reporter,
                      Reporter::Create(model, maps, static_cast<int64_t>(longest), options.chunk_rows));
  for (size_t i = 0; i < documents.size(); ++i) {
    RF_RETURN_IF_ERROR(reporter->Add(documents[i].ids));
    if (options.progress) RF_RETURN_IF_ERROR(options.progress(static_cast<int64_t>(i + 1)));
  }
  return reporter->Result();
}

}  // namespace ridgefill::fit
