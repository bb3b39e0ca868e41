#include "engine/fit/held_out_report.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/base/status.h"
#include "engine/fit/samples.h"
#include "engine/runtime/fill_pass.h"
#include "engine/runtime/host_bytes.h"

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
                                                          const ridge::DeviceMaps& maps, int64_t rows) {
    const ridge::MapSetManifest& manifest = maps.manifest();
    auto out = std::make_unique<Reporter>(model, manifest, rows);
    kernels::Backend& backend = model.backend();
    RF_ASSIGN_OR_RETURN(out->ridge_, runtime::FillPass::Create(model, maps, rows));
    RF_ASSIGN_OR_RETURN(out->identity_, runtime::FillPass::CreateIdentity(model, manifest.split, rows));
    RF_ASSIGN_OR_RETURN(out->workspace_, model.NewWorkspace(rows));
    RF_ASSIGN_OR_RETURN(out->hidden_, backend.Allocate(kernels::DType::kF32, {rows, manifest.hidden}));
    RF_ASSIGN_OR_RETURN(out->previous_, backend.Allocate(kernels::DType::kF32, {rows, manifest.hidden}));
    RF_ASSIGN_OR_RETURN(out->predicted_, backend.Allocate(kernels::DType::kF32,
                                                          {rows, 2 * int64_t{model.config().kv_width()}}));
    return out;
  }

  Reporter(const model::Model& model, const ridge::MapSetManifest& manifest, int64_t rows)
      : model_(model),
        manifest_(manifest),
        chunk_rows_(rows),
        stream_(model.backend().NewStream()),
        ridge_scores_(manifest.layers),
        identity_scores_(manifest.layers) {}

  absl::Status Add(const RowFile& file) {
    const RowFile* const files[] = {&file};
    const Samples samples =
        MakeSamples(files, manifest_.split, manifest_.outlier_threshold, manifest_.previous_row);
    const int64_t count = static_cast<int64_t>(samples.rows.size());
    for (int layer = manifest_.split + 1; layer < manifest_.layers; ++layer) {
      const std::vector<float> targets = Targets(samples.rows, layer);
      for (int64_t begin = 0; begin < count; begin += chunk_rows_) {
        RF_RETURN_IF_ERROR(AddRows(samples, targets, layer, begin, std::min(chunk_rows_, count - begin)));
      }
    }
    return absl::OkStatus();
  }

  std::vector<ridge::LayerReport> Result() const {
    std::vector<ridge::LayerReport> out;
    for (int layer = manifest_.split + 1; layer < manifest_.layers; ++layer) {
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
  absl::Status AddRows(const Samples& samples, const std::vector<float>& targets, int layer, int64_t begin,
                       int64_t count) {
    const int64_t columns = predicted_.view().dim(1);
    runtime::FillPass::Rows rows;
    RF_ASSIGN_OR_RETURN(rows.hidden, Upload(samples, begin, count, 0, hidden_));
    if (manifest_.previous_row) {
      RF_ASSIGN_OR_RETURN(rows.previous, Upload(samples, begin, count, manifest_.hidden, previous_));
    }
    const std::vector<float> want(targets.begin() + begin * columns,
                                  targets.begin() + (begin + count) * columns);
    RF_RETURN_IF_ERROR(AddFill(*ridge_, layer, rows, want, ridge_scores_[layer]));
    return AddFill(*identity_, layer, rows, want, identity_scores_[layer]);
  }

  // Columns [column, column + d) of some samples' inputs.
  absl::StatusOr<TensorView> Upload(const Samples& samples, int64_t begin, int64_t count, int64_t column,
                                    const kernels::Tensor& buffer) {
    std::vector<float> host;
    for (int64_t row = begin; row < begin + count; ++row) {
      const auto from = samples.x.begin() + row * samples.inputs + column;
      host.insert(host.end(), from, from + manifest_.hidden);
    }
    const TensorView view = buffer.view().Rows(0, count);
    RF_RETURN_IF_ERROR(
        model_.backend().CopyFromHost(*stream_, runtime::HostBytes(absl::MakeConstSpan(host)), view));
    RF_RETURN_IF_ERROR(model_.backend().Synchronize(*stream_));
    return view;
  }

  absl::Status AddFill(runtime::FillPass& fill, int layer, const runtime::FillPass::Rows& rows,
                       const std::vector<float>& want, Score& score) {
    const TensorView kv = predicted_.view().Rows(0, rows.hidden.dim(0));
    std::vector<float> got(want.size());
    RF_RETURN_IF_ERROR(fill.Predict(*stream_, *workspace_, layer, rows, kv));
    RF_RETURN_IF_ERROR(model_.backend().CopyToHost(*stream_, kv, runtime::HostBytes(absl::MakeSpan(got))));
    RF_RETURN_IF_ERROR(model_.backend().Synchronize(*stream_));
    score.Add(want, got, model_.config().kv_width(), model_.config().head_dim);
    return absl::OkStatus();
  }

  const model::Model& model_;
  const ridge::MapSetManifest& manifest_;
  const int64_t chunk_rows_;
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<runtime::FillPass> ridge_, identity_;
  std::unique_ptr<model::Workspace> workspace_;
  kernels::Tensor hidden_, previous_;                  // f32 [chunk, d]
  kernels::Tensor predicted_;                          // f32 [chunk, 2 * kv_width]
  std::vector<Score> ridge_scores_, identity_scores_;  // by layer
};

}  // namespace

absl::StatusOr<std::vector<ridge::LayerReport>> HeldOutReport(const model::Model& model,
                                                              const ridge::DeviceMaps& maps,
                                                              absl::Span<const RowFile* const> documents,
                                                              const ReportOptions& options) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Reporter> reporter,
                      Reporter::Create(model, maps, options.chunk_rows));
  for (size_t i = 0; i < documents.size(); ++i) {
    RF_RETURN_IF_ERROR(reporter->Add(*documents[i]));
    if (options.progress) RF_RETURN_IF_ERROR(options.progress(static_cast<int64_t>(i + 1)));
  }
  return reporter->Result();
}

}  // namespace ridgefill::fit
