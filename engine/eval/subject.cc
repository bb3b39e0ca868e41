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
  return forward_->Late(Plan(variant, shape), At(variant.split).fills.at(variant.fill).get(), variant.split);
}

ridge::FillPlan Subject::Plan(const Variant& variant, const Shape& shape) const {
  const int64_t tokens = static_cast<int64_t>(ids_.size());
  RF_CHECK(0 < shape.tail && shape.tail <= shape.prompt_tokens && shape.prompt_tokens <= tokens);
  ridge::FillDecision decision;
  decision.mode = variant.mode();
  decision.split = manifest(variant.split).split;
  decision.tail = static_cast<int>(shape.tail);
  decision.selector = variant.selector;
  decision.share = variant.share;
  std::vector<int32_t> outliers;
  for (int64_t row = 0; row < tokens; ++row) {
    if (ridge::IsOutlier(row, forward_->norms(variant.split)[row],
                         manifest(variant.split).outlier_threshold)) {
      outliers.push_back(static_cast<int32_t>(row));
    }
  }
  // As the engines would see the prompt; the forced rows behind it are exact like generated ones.
  const auto prompt = absl::MakeConstSpan(ids_).subspan(0, shape.prompt_tokens);
  const std::vector<int32_t> in_bulk(outliers.begin(),
                                     std::lower_bound(outliers.begin(), outliers.end(), shape.tail_begin()));
  const auto selected = ridge::SelectRows(decision, prompt, forward_->scores(variant.split), in_bulk);
  decision.tail = static_cast<int>(tokens - shape.tail_begin());
  return ridge::MakeFillPlan(decision, tokens, outliers, selected);
}

}  // namespace ridgefill::eval
