// From the losses of text tokens to records: pure functions, one for each measure of engine/eval/text.h.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/eval/json_log.h"
#include "engine/eval/subject.h"

namespace ridgefill::eval {

// Of one document: the scored rows [tail_begin, tokens - 1), by row.
struct TextRun {
  std::vector<double> exact, cut, filled, kl, top1;  // NLL of three runs; then filled against exact
  int64_t outliers = 0, filled_rows = 0;
};
using TextRuns = std::vector<TextRun>;  // by document

// From the values of TextMeasure. The exact run's rows begin `skip` rows before this tail's.
TextRuns ReadRuns(absl::Span<const Record> values, size_t tail, size_t variant, int64_t skip);

struct TextSetting {
  int64_t tokens = 0;  // of a document
  int64_t continuation = 0;
  uint64_t seed = 0;
  const std::vector<std::vector<int32_t>>& documents;
};

// One record for each window: "tail" (with the loss by distance from the tail's first row), "last_512" when
// the tail is longer, and "continuation".
std::vector<Record> NllRecords(const TextSetting& setting, const Variant& variant, int64_t tail,
                               const TextRuns& runs);
// Windows "tail" and "continuation": dNLL of the 5 % of a document's tokens there whose exact NLL rises most
// when the bulk is cut from the prompt; the choice sees exact runs alone.
std::vector<Record> DistantRecords(const TextSetting& setting, const Variant& variant, int64_t tail,
                                   const TextRuns& runs);
// Perplexity ratio filled / exact over all scored rows: "novel" tokens, which occur nowhere earlier in their
// document, and "seen", the others, beside them. A document without any is left out of its window.
std::vector<Record> NovelRecords(const TextSetting& setting, const Variant& variant, int64_t tail,
                                 const TextRuns& runs);

}  // namespace ridgefill::eval
