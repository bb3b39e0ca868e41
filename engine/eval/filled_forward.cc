#include "engine/eval/filled_forward.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/runtime/selection_scores.h"

namespace ridgefill::eval {
namespace {

using kernels::DType;
using kernels::TensorView;

constexpr int64_t kLogitRows = 64;  // rows whose logits are held at once, at most

// Log of the sum of exponentials, less the logit of the token that came.
double Nll(absl::Span<const float> logits, int32_t token) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - top);
  return std::log(sum) + top - logits[token];
}

}  // namespace

absl::StatusOr<std::unique_ptr<FilledForward>> FilledForward::Create(const model::Model& model, int split,
                                                                     int64_t max_tokens, int64_t chunk_rows) {
  const model::ModelConfig& config = model.config();
  kernels::Backend& backend = model.backend();
  std::unique_ptr<FilledForward> out(new FilledForward(model, split, chunk_rows));
  RF_ASSIGN_OR_RETURN(out->pass_, runtime::SequencePass::Create(model, max_tokens, chunk_rows));
  RF_ASSIGN_OR_RETURN(out->h_split_, backend.Allocate(DType::kF32, {max_tokens, config.hidden}));
  RF_ASSIGN_OR_RETURN(out->chunk_, backend.Allocate(DType::kF32, {chunk_rows, config.hidden}));
  RF_ASSIGN_OR_RETURN(out->late_, backend.Allocate(DType::kF32, {max_tokens, config.hidden}));
  RF_ASSIGN_OR_RETURN(out->logits_,
                      backend.Allocate(DType::kF32, {std::min(kLogitRows, chunk_rows), config.vocab}));
  return out;
}

absl::Status FilledForward::Lower(absl::Span<const int32_t> ids, int64_t prompt_tokens) {
  ids_.assign(ids.begin(), ids.end());
  norms_.clear();
  const int64_t tokens = static_cast<int64_t>(ids.size());
  RF_CHECK(tokens <= pass_->max_tokens() && prompt_tokens <= tokens);
  scores_.clear();
  std::unique_ptr<runtime::SelectionScores> scores;
  if (prompt_tokens > 0) {
    RF_ASSIGN_OR_RETURN(scores,
                        runtime::SelectionScores::Create(model_, split_, prompt_tokens, pass_->stream()));
  }
  for (int64_t begin = 0; begin < tokens; begin += chunk_rows_) {
    const int64_t count = std::min(chunk_rows_, tokens - begin);
    const TensorView hidden = h_split_.view().Rows(begin, count);
    RF_RETURN_IF_ERROR(pass_->Embed(ids.subspan(begin, count), hidden));
    const std::vector<int32_t> positions = runtime::Positions(begin, begin + count);
    runtime::SequencePass::Layers layers{positions, hidden, 0, split_, {}};
    if (scores != nullptr) {
      layers.on_query = [&](int layer, const TensorView& q) {
        return scores->Add(pass_->stream(), layer, q, {&pass_->cache(), pass_->block_table(), begin});
      };
    }
    RF_RETURN_IF_ERROR(pass_->Forward(layers));
    RF_ASSIGN_OR_RETURN(const std::vector<float> norms, pass_->RowNorms(hidden));
    norms_.insert(norms_.end(), norms.begin(), norms.end());
  }
  if (scores == nullptr) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(scores_, scores->Mean(pass_->stream()));
  return absl::OkStatus();
}

absl::Status FilledForward::Late(const ridge::FillPlan& plan, runtime::FillPass* fill) {
  RF_CHECK(plan.tokens == static_cast<int64_t>(ids_.size()));
  exact_rows_ = plan.ExactRows();
  const std::vector<int32_t> all = runtime::Positions(0, plan.tokens);
  std::vector<int32_t> bulk;
  std::set_difference(all.begin(), all.end(), exact_rows_.begin(), exact_rows_.end(),
                      std::back_inserter(bulk));
  RF_CHECK(bulk.empty() || fill != nullptr);
  const int64_t rows = static_cast<int64_t>(bulk.size());
  for (int64_t begin = 0; begin < rows; begin += chunk_rows_) {
    const int64_t count = std::min(chunk_rows_, rows - begin);
    RF_RETURN_IF_ERROR(FillRows(absl::MakeConstSpan(bulk).subspan(begin, count), *fill));
  }
  return RunExactRows();
}

absl::Status FilledForward::FillRows(absl::Span<const int32_t> rows, runtime::FillPass& fill) {
  const TensorView hidden = Chunk(static_cast<int64_t>(rows.size()));
  RF_RETURN_IF_ERROR(pass_->Gather(h_split_.view(), rows, hidden));
  return pass_->WithBatch(rows, [&](const kernels::Batch& batch) {
    return fill.Run(pass_->stream(), {hidden, &batch, &pass_->cache(), &pass_->workspace(), {}});
  });
}

absl::Status FilledForward::RunExactRows() {
  const int64_t rows = static_cast<int64_t>(exact_rows_.size());
  for (int64_t begin = 0; begin < rows; begin += chunk_rows_) {
    const int64_t count = std::min(chunk_rows_, rows - begin);
    const auto positions = absl::MakeConstSpan(exact_rows_).subspan(begin, count);
    const TensorView hidden = late_.view().Rows(begin, count);
    RF_RETURN_IF_ERROR(pass_->Gather(h_split_.view(), positions, hidden));
    RF_RETURN_IF_ERROR(pass_->Forward({positions, hidden, split_, model_.config().layers, {}}));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> FilledForward::Logits(int64_t position) {
  const auto at = std::lower_bound(exact_rows_.begin(), exact_rows_.end(), position);
  RF_CHECK(at != exact_rows_.end() && *at == position);
  const TensorView logits = logits_.view().Rows(0, 1);
  RF_RETURN_IF_ERROR(model_.Logits(pass_->stream(), pass_->workspace(), kernels::Phase::kPrompt,
                                   late_.view().Rows(at - exact_rows_.begin(), 1), logits));
  return pass_->Floats(logits);
}

absl::StatusOr<std::vector<double>> FilledForward::NextTokenNll(int64_t begin, int64_t end) {
  const int64_t first = std::lower_bound(exact_rows_.begin(), exact_rows_.end(), begin) - exact_rows_.begin();
  // Exact rows from `begin` on lie side by side.
  RF_CHECK(end < static_cast<int64_t>(ids_.size()) && exact_rows_[first] == begin &&
           exact_rows_[first + end - begin] == end);
  const int64_t vocab = model_.config().vocab;
  std::vector<double> out;
  const int64_t slice = logits_.view().dim(0);
  for (int64_t at = begin; at < end; at += slice) {
    const int64_t count = std::min(slice, end - at);
    const TensorView logits = logits_.view().Rows(0, count);
    RF_RETURN_IF_ERROR(model_.Logits(pass_->stream(), pass_->workspace(), kernels::Phase::kPrompt,
                                     late_.view().Rows(first + at - begin, count), logits));
    RF_ASSIGN_OR_RETURN(const std::vector<float> values, pass_->Floats(logits));
    for (int64_t i = 0; i < count; ++i) {
      out.push_back(Nll(absl::MakeConstSpan(values).subspan(i * vocab, vocab), ids_[at + i + 1]));
    }
  }
  return out;
}

}  // namespace ridgefill::eval
