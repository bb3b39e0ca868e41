#include "engine/eval/subject.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/ridge/selection.h"

namespace ridgefill::eval {

absl::string_view Name(Fill fill) {
  switch (fill) {
    case Fill::kRidge:
      return "ridge";
    case Fill::kIdentity:
      return "identity";
  }
  RF_CHECK(false);
}

absl::StatusOr<std::unique_ptr<Subject>> Subject::Create(const model::Model& model,
                                                         absl::Span<const ridge::DeviceMaps* const> maps,
                                                         const Options& options) {
  std::unique_ptr<Subject> out(new Subject(model, options.max_tokens));
  std::vector<int> splits;
  for (const ridge::DeviceMaps* const one : maps) {
    const int split = one->manifest().split;
    splits.push_back(split);
    Set& set = out->sets_[split];
    set.maps = one;
    RF_ASSIGN_OR_RETURN(set.fills[Fill::kRidge], runtime::FillPass::Create(model, *one, options.chunk_rows));
    RF_ASSIGN_OR_RETURN(set.fills[Fill::kIdentity],
                        runtime::FillPass::CreateIdentity(model, split, options.chunk_rows));
  }
  RF_ASSIGN_OR_RETURN(out->forward_,
                      FilledForward::Create(model, splits, options.max_tokens, options.chunk_rows));
  return out;
}

const Subject::Set& Subject::At(int split) const {
  RF_CHECK(split != 0 || sets_.size() == 1);
  return split == 0 ? sets_.begin()->second : sets_.at(split);
}

absl::Status Subject::Lower(absl::Span<const int32_t> ids, int64_t prompt_tokens) {
  ids_.assign(ids.begin(), ids.end());
  return forward_->Lower(ids, prompt_tokens);
}

absl::Status Subject::RunExact() {
  return forward_->Late(ridge::MakeFillPlan({}, static_cast<int64_t>(ids_.size()), {}, {}), nullptr);
}

absl::Status Subject::RunFilled(const Variant& variant, const Shape& shape) {
  RF_ASSIGN_OR_RETURN(plan_, MakePlan(variant, shape));
  return forward_->Late(plan_, At(variant.split).fills.at(variant.fill).get(), variant.split);
}

std::vector<int32_t> Subject::Outliers(int split) const {
  std::vector<int32_t> rows;
  for (size_t row = 0; row < ids_.size(); ++row) {
    if (ridge::IsOutlier(static_cast<int64_t>(row), forward_->norms(split)[row],
                         manifest(split).outlier_threshold)) {
      rows.push_back(static_cast<int32_t>(row));
    }
  }
  return rows;
}

// As the engines would see the prompt; the forced rows behind it are exact like generated ones.
absl::StatusOr<ridge::FillPlan> Subject::MakePlan(const Variant& variant, const Shape& shape) {
  const int64_t tokens = static_cast<int64_t>(ids_.size());
  RF_CHECK(0 < shape.tail && shape.tail <= shape.prompt_tokens && shape.prompt_tokens <= tokens);
  ridge::FillDecision decision;
  decision.mode = variant.mode();
  decision.split = manifest(variant.split).split;
  decision.tail = static_cast<int>(shape.tail);
  decision.selector = variant.selector;
  decision.share = variant.share;
  const std::vector<int32_t> outliers = Outliers(variant.split);
  const auto prompt = absl::MakeConstSpan(ids_).subspan(0, shape.prompt_tokens);
  std::vector<float> scores = forward_->scores(variant.split);
  if (ridge::NeedsProbe(decision) && ridge::HasRoomForAWindow(decision, shape.tail_begin())) {
    ridge::FillDecision probe = decision;
    probe.tail = static_cast<int>(shape.prompt_tokens - ridge::ProbeBegin(decision, shape.prompt_tokens));
    RF_ASSIGN_OR_RETURN(scores, forward_->Probe(ridge::MakeFillPlan(probe, shape.prompt_tokens, outliers, {}),
                                                *At(variant.split).fills.at(variant.fill), variant.split));
  }
  const std::vector<int32_t> selected = ridge::SelectRows(decision, prompt, scores, outliers);
  decision.tail = static_cast<int>(tokens - shape.tail_begin());
  return ridge::MakeFillPlan(decision, tokens, outliers, selected);
}

}  // namespace ridgefill::eval
