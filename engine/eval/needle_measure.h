// Needle accuracy: greedy exact match and the answer's loss of exact, filled and identity runs on the same
// items (engine/eval/needle.h), all of them and those that the exact run solves.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/eval/measure.h"
#include "engine/eval/needle.h"

namespace ridgefill::eval {

// Items of one cell: made by MakeNeedles from `options`.
class NeedleMeasure : public Measure {
 public:
  NeedleMeasure(std::vector<NeedleItem> items, const NeedleOptions& options, std::vector<Variant> variants)
      : items_(std::move(items)), options_(options), variants_(std::move(variants)) {}

  std::string name() const override;
  Record Config() const override;
  int64_t items() const override { return static_cast<int64_t>(items_.size()); }
  int64_t tokens(int64_t item) const override { return static_cast<int64_t>(items_[item].ids.size()); }
  double Work(const Subject& subject, int64_t item) const override;
  std::string Digest(int64_t item) const override;
  // {"exact": {"right": [0 or 1 for each value], "nll": of the values' tokens, mean}, "runs": [one object for
  // each variant: the same, and "outliers"]}
  absl::StatusOr<Record> Values(Subject& subject, int64_t item) const override;
  // One record for the exact run, with mode "EXACT" and fill "none", and one for each variant.
  std::vector<Record> Records(absl::Span<const Record> values) const override;

 private:
  absl::StatusOr<Record> Score(FilledForward& forward, const NeedleItem& item) const;
  Record MakeRecord(const Record& variant, absl::Span<const Record> runs) const;

  std::vector<NeedleItem> items_;
  NeedleOptions options_;
  std::vector<Variant> variants_;
};

}  // namespace ridgefill::eval
