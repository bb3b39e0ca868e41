// Quality against time over split, tail and share (docs/method.md, "Measuring it", sweep). Each point is a
// map set, a tail and a variant: its paired dNLL, KL and top-1 agreement on text, and what its first token
// takes relative to the exact run of the same prompt. One exact pass over a document serves all points.
//
// Items are documents, then one for each split that takes times. Times are of the evaluation's own forward
// pass: one prompt alone, from token ids to the logits of the first token, no services and no queues.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/eval/measure.h"

namespace ridgefill::eval {

struct SweepOptions {
  std::map<int, std::string> maps;  // digests of the subject's map sets by split
  std::vector<int64_t> tails = {256, 512, 1024};
  int64_t continuation = 256;
  std::vector<Variant> variants = {{Fill::kRidge}, {Fill::kIdentity}};  // at each split and tail
  // Timed runs of each point and of exact, after one that does not count; 0: no times. They take turns, over
  // the first document's prompt.
  int runs = 3;
  int threads = 0;  // of the backend: goes into the records
  const base::Clock* clock = nullptr;
  uint64_t seed = 0;  // of the documents' choice: goes into the records
};

class SweepMeasure : public Measure {
 public:
  // As CheckDocuments (engine/eval/text.h); INVALID_ARGUMENT (EVAL_POINTS) when no point is asked for.
  static absl::StatusOr<SweepMeasure> Create(std::vector<std::vector<int32_t>> documents,
                                             const SweepOptions& options);

  std::string name() const override;
  Record Config() const override;
  int64_t items() const override;
  int64_t tokens(int64_t item) const override;
  double Work(const Subject& subject, int64_t item) const override;
  std::string Digest(int64_t item) const override;
  // Of a document: {"exact": [{"tail", "continuation": NLL} for each tail], "points": [{"outliers",
  // "selected", "filled": row counts, "tail", "continuation": {"dnll", "kl", "top1"}}]}; splits from the
  // highest down, then tails, then variants. Of a split: {"exact_ms": [one for each run], "ms": [the same for
  // each tail and variant]}.
  absl::StatusOr<Record> Values(Subject& subject, int64_t item) const override;
  // For each point one record for each window.
  std::vector<Record> Records(absl::Span<const Record> values) const override;

 private:
  struct Point {
    int split = 0;
    size_t tail = 0, variant = 0;  // indices
  };

  SweepMeasure(std::vector<std::vector<int32_t>> documents, const SweepOptions& options);
  bool IsDocument(int64_t item) const { return item < static_cast<int64_t>(documents_.size()); }
  int64_t prompt_tokens() const { return tokens_ - options_.continuation; }
  Shape ShapeOf(size_t tail) const { return {prompt_tokens(), options_.tails[tail]}; }
  Variant VariantOf(const Point& point) const;
  absl::StatusOr<Record> DocumentValues(Subject& subject, const std::vector<int32_t>& ids) const;
  // `exact` is of the longest tail's scored rows; those of this tail begin at `skip`.
  absl::StatusOr<Record> PointValues(Subject& subject, const Point& point, const KeptLogits& exact,
                                     int64_t skip, absl::Span<const TokenScore> exact_scores) const;
  absl::StatusOr<Record> Times(Subject& subject, int split) const;
  absl::StatusOr<double> Milliseconds(Subject& subject, const Point* point) const;
  Record MakeRecord(absl::Span<const Record> values, size_t index, size_t window_index) const;
  Record TimeRecord(const Record& times, size_t in_split) const;

  std::vector<std::vector<int32_t>> documents_;
  SweepOptions options_;
  int64_t tokens_ = 0;
  std::vector<int> splits_;    // from the highest down
  std::vector<Point> points_;  // in the order of the values
};

}  // namespace ridgefill::eval
