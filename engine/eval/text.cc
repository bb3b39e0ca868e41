#include "engine/eval/text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/eval/text_records.h"

namespace ridgefill::eval {
namespace {

Record NllValues(absl::Span<const TokenScore> scores) {
  std::vector<double> nll;
  nll.reserve(scores.size());
  for (const TokenScore& score : scores) nll.push_back(score.nll);
  return Rounded(nll);
}

// NLL of the tokens after all rows of a document but the last.
absl::StatusOr<Record> ExactValues(Subject& subject, absl::Span<const int32_t> ids) {
  FilledForward& forward = subject.forward();
  const int64_t rows = static_cast<int64_t>(ids.size()) - 1;
  RF_RETURN_IF_ERROR(subject.Lower(ids));
  RF_RETURN_IF_ERROR(subject.RunExact());
  RF_ASSIGN_OR_RETURN(const auto scores,
                      forward.scorer().Score(forward.Rows(0, rows), forward.TokensAfter(0, rows)));
  return NllValues(scores);
}

Record RunValues(const ridge::FillPlan& plan, absl::Span<const PairScore> scores) {
  std::vector<double> nll, kl;
  Record top1 = Record::array();
  for (const PairScore& score : scores) {
    nll.push_back(score.nll);
    kl.push_back(score.kl);
    top1.push_back(score.agree ? 1 : 0);
  }
  return {{"outliers", plan.outliers.size()},
          {"selected", plan.selected.size()},
          {"filled", plan.filled_count()},
          {"nll", Rounded(nll)},
          {"kl", Rounded(kl)},
          {"top1", std::move(top1)}};
}

}  // namespace

absl::Status CheckDocuments(absl::Span<const std::vector<int32_t>> documents, absl::Span<const int64_t> tails,
                            int64_t continuation) {
  const auto refuse = [](absl::string_view reason, absl::string_view message) {
    return base::Error(absl::StatusCode::kInvalidArgument, reason, message);
  };
  if (documents.empty()) return refuse("EVAL_NO_DOCUMENTS", "no documents to evaluate");
  const int64_t tokens = static_cast<int64_t>(documents.front().size());
  for (const std::vector<int32_t>& document : documents) {
    if (static_cast<int64_t>(document.size()) != tokens) {
      return refuse("EVAL_LENGTHS", absl::StrCat("documents of ", tokens, " and ", document.size(),
                                                 " tokens in one evaluation"));
    }
  }
  if (tails.empty()) return refuse("EVAL_WINDOWS", "no tail to evaluate");
  for (int64_t tail : tails) {
    if (tail >= 2 && continuation >= 1 && tail < tokens - continuation) continue;
    return refuse("EVAL_WINDOWS",
                  absl::StrCat("tail (", tail, ", at least 2) and continuation (", continuation,
                               ", at least 1) must leave bulk in documents of ", tokens, " tokens"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TextMeasure> TextMeasure::Create(std::vector<std::vector<int32_t>> documents,
                                                const TextOptions& options) {
  RF_RETURN_IF_ERROR(CheckDocuments(documents, options.tails, options.continuation));
  return TextMeasure(std::move(documents), options);
}

std::string TextMeasure::name() const { return absl::StrCat("text ", tokens_); }

Record TextMeasure::Config() const {
  Record variants = Record::array();
  for (const Variant& variant : options_.variants) variants.push_back(ToRecord(variant));
  return {{"values", "text 1"},
          {"tails", options_.tails},
          {"continuation", options_.continuation},
          {"variants", std::move(variants)}};
}

double TextMeasure::Work(const Subject&, int64_t) const {
  double out = static_cast<double>(tokens_);
  for (int64_t tail : options_.tails) {
    const double scored = static_cast<double>(tail + options_.continuation);
    out += scored * (1 + kHeadWork) +  // the prompt without its bulk
           static_cast<double>(options_.variants.size()) *
               (static_cast<double>(tokens_) * kFillWork + scored * (kLateWork + kHeadWork));
  }
  return out;
}

absl::StatusOr<Record> TextMeasure::Values(Subject& subject, int64_t item) const {
  FilledForward& forward = subject.forward();
  const std::vector<int32_t>& ids = documents_[item];
  const int64_t first = ShapeOf(*std::max_element(options_.tails.begin(), options_.tails.end())).tail_begin();
  const int64_t end = tokens_ - 1;  // of the scored rows
  RF_RETURN_IF_ERROR(subject.Lower(ids, tokens_ - options_.continuation));
  RF_RETURN_IF_ERROR(subject.RunExact());
  RF_ASSIGN_OR_RETURN(const KeptLogits exact, forward.scorer().Keep(forward.Rows(first, end)));
  const auto scores = Scorer::Score(exact, forward.TokensAfter(first, end));
  Record out = {{"exact", NllValues(scores)}, {"tails", Record::array()}};
  for (int64_t tail : options_.tails) {
    const int64_t begin = ShapeOf(tail).tail_begin();
    RF_ASSIGN_OR_RETURN(Record runs, FilledValues(subject, exact, begin - first, ShapeOf(tail)));
    out["tails"].push_back(Record::object());
    out["tails"].back()["runs"] = std::move(runs);
  }
  // Last, as these are other documents: the tail and what follows alone.
  for (size_t i = 0; i < options_.tails.size(); ++i) {
    const auto cut = absl::MakeConstSpan(ids).subspan(ShapeOf(options_.tails[i]).tail_begin());
    RF_ASSIGN_OR_RETURN(out["tails"][i]["cut"], ExactValues(subject, cut));
  }
  return out;
}

// One object for each variant; `exact`: logits of the exact run, those of the scored rows from `skip` on.
absl::StatusOr<Record> TextMeasure::FilledValues(Subject& subject, const KeptLogits& exact, int64_t skip,
                                                 const Shape& shape) const {
  FilledForward& forward = subject.forward();
  const int64_t begin = shape.tail_begin(), end = tokens_ - 1;
  Record runs = Record::array();
  for (const Variant& variant : options_.variants) {
    RF_RETURN_IF_ERROR(subject.RunFilled(variant, shape));
    RF_ASSIGN_OR_RETURN(const auto pairs, forward.scorer().Compare(exact, skip, forward.Rows(begin, end),
                                                                   forward.TokensAfter(begin, end)));
    runs.push_back(RunValues(subject.plan(), pairs));
  }
  return runs;
}

std::vector<Record> TextMeasure::Records(absl::Span<const Record> values) const {
  std::vector<Record> out;
  const TextSetting setting{tokens_, options_.continuation, options_.seed, documents_};
  const int64_t longest = *std::max_element(options_.tails.begin(), options_.tails.end());
  for (size_t t = 0; t < options_.tails.size(); ++t) {
    for (size_t v = 0; v < options_.variants.size(); ++v) {
      const TextRuns runs = ReadRuns(values, t, v, longest - options_.tails[t]);
      const Variant& variant = options_.variants[v];
      const auto add = [&](std::vector<Record> records) {
        out.insert(out.end(), records.begin(), records.end());
      };
      if (options_.nll) add(NllRecords(setting, variant, options_.tails[t], runs));
      if (options_.distant) add(DistantRecords(setting, variant, options_.tails[t], runs));
      if (options_.novel) add(NovelRecords(setting, variant, options_.tails[t], runs));
    }
  }
  return out;
}

}  // namespace ridgefill::eval
