// Where a fill's loss lies (docs/method.md, "Measuring it", splice): late K and V of the bulk as the exact
// run has them, with the filled K, the filled V or both put in their place, in all late layers or in one at a
// time. The exact rows then run their late layers over that cache.
//
// The split layer's K and V are exact in every fill, so it is not among the layers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/eval/measure.h"

namespace ridgefill::eval {

struct SpliceOptions {
  int64_t tail = 512;
  int64_t continuation = 256;
  Variant variant;
  uint64_t seed = 0;  // of the documents' choice: goes into the records
};

class SpliceMeasure : public Measure {
 public:
  // Documents as CheckDocuments (engine/eval/text.h) asks for.
  static absl::StatusOr<SpliceMeasure> Create(std::vector<std::vector<int32_t>> documents,
                                              const SpliceOptions& options);

  std::string name() const override;
  Record Config() const override;
  int64_t items() const override { return static_cast<int64_t>(documents_.size()); }
  int64_t tokens(int64_t) const override { return tokens_; }
  double Work(const Subject& subject, int64_t item) const override;
  std::string Digest(int64_t item) const override { return TokensDigest(documents_[item]); }
  // {"outliers", "cells": [{"layers": "all" or a layer, "half": "k", "v" or "both", "tail", "continuation":
  // mean dNLL and KL(exact || spliced) of the window}]}; all layers first, then one after the other.
  absl::StatusOr<Record> Values(Subject& subject, int64_t item) const override;
  // For each window one record for each cell, and a last one with half "k_less_v": what K costs more than V
  // when each is put in alone in all layers. It also has K's share of the two and the layers by their loss,
  // both in KL, which luck on single tokens moves far less than dNLL.
  std::vector<Record> Records(absl::Span<const Record> values) const override;

 private:
  SpliceMeasure(std::vector<std::vector<int32_t>> documents, const SpliceOptions& options)
      : documents_(std::move(documents)), options_(options), tokens_(documents_.front().size()) {}
  Shape shape() const { return {tokens_ - options_.continuation, options_.tail}; }
  Record Base(absl::Span<const Record> values, const char* window) const;
  Record Summary(absl::Span<const Record> values, const char* window) const;

  std::vector<std::vector<int32_t>> documents_;
  SpliceOptions options_;
  int64_t tokens_ = 0;
};

}  // namespace ridgefill::eval
