// What a fill costs on plain text (docs/method.md, "Measuring it"), against the exact run of the same engine
// on the same tokens: paired dNLL with KL and top-1 agreement ("nll"), the loss on tokens that need distant
// context
// ("distant") and on tokens that are new in the document ("novel"). One pass over a document serves all
// three.
//
// Scored rows are those from the tail's first to the last but one; what is scored is the token after each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/eval/measure.h"

namespace ridgefill::eval {

struct TextOptions {
  std::vector<int64_t> tails = {512};
  int64_t continuation = 256;  // tokens of a document that are forced after its prompt
  std::vector<Variant> variants = {{Fill::kRidge}, {Fill::kIdentity}};
  bool nll = true, distant = true, novel = true;  // which records are made
  uint64_t seed = 0;                              // of the documents' choice: goes into the records
};

// Documents of one length: prompt and continuation together. INVALID_ARGUMENT when there are none
// (EVAL_NO_DOCUMENTS), or they are unequal (EVAL_LENGTHS) or too short for tail and continuation
// (EVAL_WINDOWS).
absl::Status CheckDocuments(absl::Span<const std::vector<int32_t>> documents, absl::Span<const int64_t> tails,
                            int64_t continuation);

class TextMeasure : public Measure {
 public:
  // As CheckDocuments.
  static absl::StatusOr<TextMeasure> Create(std::vector<std::vector<int32_t>> documents,
                                            const TextOptions& options);

  std::string name() const override;
  Record Config() const override;
  int64_t items() const override { return static_cast<int64_t>(documents_.size()); }
  int64_t tokens(int64_t) const override { return tokens_; }
  double Work(const Subject& subject, int64_t item) const override;
  std::string Digest(int64_t item) const override { return TokensDigest(documents_[item]); }
  // {"exact": [nll of the scored rows of the longest tail], "tails": [one object for each tail:
  //  {"cut": [nll of the exact run when the bulk is cut from the prompt], "runs": [one object for each
  //  variant:
  //  {"outliers", "filled": row counts, "nll": [..], "kl": [..], "top1": [0 or 1, ..]}]}]}
  absl::StatusOr<Record> Values(Subject& subject, int64_t item) const override;
  std::vector<Record> Records(absl::Span<const Record> values) const override;

 private:
  TextMeasure(std::vector<std::vector<int32_t>> documents, const TextOptions& options)
      : documents_(std::move(documents)), options_(options), tokens_(documents_.front().size()) {}
  absl::StatusOr<Record> FilledValues(Subject& subject, const KeptLogits& exact, int64_t skip,
                                      const Shape& shape) const;
  Shape ShapeOf(int64_t tail) const { return {tokens_ - options_.continuation, tail}; }

  std::vector<std::vector<int32_t>> documents_;
  TextOptions options_;
  int64_t tokens_ = 0;
};

}  // namespace ridgefill::eval
