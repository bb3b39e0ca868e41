#include "engine/eval/subject.h"

#include "engine/base/check.h"
#include "engine/base/status.h"

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
                                                         const ridge::DeviceMaps& maps,
                                                         const Options& options) {
  std::unique_ptr<Subject> out(new Subject(model, maps, options.max_tokens));
  const int split = maps.manifest().split;
  RF_ASSIGN_OR_RETURN(out->forward_,
                      FilledForward::Create(model, split, options.max_tokens, options.chunk_rows));
  RF_ASSIGN_OR_RETURN(out->fills_[Fill::kRidge], runtime::FillPass::Create(model, maps, options.chunk_rows));
  RF_ASSIGN_OR_RETURN(out->fills_[Fill::kIdentity],
                      runtime::FillPass::CreateIdentity(model, split, options.chunk_rows));
  return out;
}

absl::Status Subject::Lower(absl::Span<const int32_t> ids) {
  tokens_ = static_cast<int64_t>(ids.size());
  return forward_->Lower(ids);
}

absl::Status Subject::RunExact() { return forward_->Late(ridge::MakeFillPlan({}, tokens_, {}, {}), nullptr); }

absl::Status Subject::RunFilled(const Variant& variant, const Shape& shape) {
  return forward_->Late(Plan(variant, shape), fills_.at(variant.fill).get());
}

ridge::FillPlan Subject::Plan(const Variant& variant, const Shape& shape) const {
  RF_CHECK(variant.selection == "none");
  RF_CHECK(0 < shape.tail && shape.tail <= shape.prompt_tokens && shape.prompt_tokens <= tokens_);
  ridge::FillDecision decision;
  decision.mode = variant.mode();
  decision.split = manifest().split;
  decision.tail = static_cast<int>(tokens_ - shape.tail_begin());
  std::vector<int32_t> outliers;
  for (int64_t row = 0; row < tokens_; ++row) {
    if (ridge::IsOutlier(row, forward_->norms()[row], manifest().outlier_threshold)) {
      outliers.push_back(static_cast<int32_t>(row));
    }
  }
  return ridge::MakeFillPlan(decision, tokens_, outliers, {});
}

}  // namespace ridgefill::eval
