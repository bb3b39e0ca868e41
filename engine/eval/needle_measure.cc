#include "engine/eval/needle_measure.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/eval/paired.h"

namespace ridgefill::eval {
namespace {

constexpr int kDepthBuckets = 5;

bool IsSolved(const Record& run) {
  const Record& right = run["right"];
  return std::all_of(right.begin(), right.end(), [](const Record& r) { return r == 1; });
}

std::vector<bool> Solved(absl::Span<const Record> runs) {
  std::vector<bool> out;
  for (const Record& run : runs) out.push_back(IsSolved(run));
  return out;
}

double Recall(const Record& run) {
  const auto right = run["right"].get<std::vector<double>>();
  return std::accumulate(right.begin(), right.end(), 0.0) / static_cast<double>(right.size());
}

// Mean over runs of what `f` gives for one.
template <typename F>
double Mean(absl::Span<const Record> runs, F f) {
  double sum = 0;
  for (const Record& run : runs) sum += f(run);
  return Rounded(sum / static_cast<double>(runs.size()));
}

Record Accuracy(int64_t solved, int64_t items) {
  const Interval interval = Wilson(solved, items);
  return {{"items", items},
          {"mean", Rounded(interval.mean)},
          {"low", Rounded(interval.low)},
          {"high", Rounded(interval.high)}};
}

// Of the items where `among`.
Record Accuracy(const std::vector<bool>& solved, const std::vector<bool>& among) {
  int64_t items = 0, of_them = 0;
  for (size_t i = 0; i < solved.size(); ++i) {
    items += among[i];
    of_them += among[i] && solved[i];
  }
  return Accuracy(of_them, items);
}

Record Against(const std::vector<bool>& other, const std::vector<bool>& solved) {
  const McNemar test = ComparePaired(other, solved);
  return {{"lost", test.lost}, {"gained", test.gained}, {"mcnemar_p", Rounded(test.p)}};
}

// Runs of one variant, an item each.
std::vector<Record> RunsOf(absl::Span<const Record> values, size_t variant) {
  std::vector<Record> out;
  for (const Record& item : values) out.push_back(item["runs"][variant]);
  return out;
}

}  // namespace

std::string NeedleMeasure::name() const {
  return absl::StrCat("needle ", std::string(Name(options_.task)), " ", options_.length);
}

Record NeedleMeasure::Config() const {
  Record variants = Record::array();
  for (const Variant& variant : variants_) variants.push_back(ToRecord(variant));
  return {{"values", "needle 1"}, {"tail", options_.tail}, {"variants", std::move(variants)}};
}

std::string NeedleMeasure::Digest(int64_t item) const {
  // Which tokens are scored follows from where the answer begins.
  return absl::StrCat(TokensDigest(items_[item].ids), " ", items_[item].prompt_tokens);
}

double NeedleMeasure::Work(const Subject&, int64_t item) const {
  const double rows = static_cast<double>(tokens(item)), tail = static_cast<double>(options_.tail);
  return rows + static_cast<double>(variants_.size()) * (rows * kFillWork + tail * kLateWork);
}

absl::StatusOr<Record> NeedleMeasure::Score(FilledForward& forward, const NeedleItem& item) const {
  const int64_t begin = item.prompt_tokens - 1, end = static_cast<int64_t>(item.ids.size()) - 1;
  RF_ASSIGN_OR_RETURN(const std::vector<TokenScore> scores,
                      forward.scorer().Score(forward.Rows(begin, end), forward.TokensAfter(begin, end)));
  Record right = Record::array();
  double nll = 0;
  int64_t tokens = 0;
  for (const TokenSpan& value : item.answers) {
    bool all = true;
    for (int64_t i = value.begin; i < value.end; ++i) {
      const TokenScore& score = scores[i - item.prompt_tokens];
      all = all && score.argmax;
      nll += score.nll;
      ++tokens;
    }
    right.push_back(all ? 1 : 0);
  }
  return Record{{"right", std::move(right)}, {"nll", Rounded(nll / static_cast<double>(tokens))}};
}

absl::StatusOr<Record> NeedleMeasure::Values(Subject& subject, int64_t item) const {
  const NeedleItem& needle = items_[item];
  const Shape shape = {needle.prompt_tokens, options_.tail};
  RF_RETURN_IF_ERROR(subject.Lower(needle.ids, needle.prompt_tokens));
  RF_RETURN_IF_ERROR(subject.RunExact());
  RF_ASSIGN_OR_RETURN(Record exact, Score(subject.forward(), needle));
  Record out = {{"exact", std::move(exact)}, {"runs", Record::array()}};
  for (const Variant& variant : variants_) {
    RF_RETURN_IF_ERROR(subject.RunFilled(variant, shape));
    RF_ASSIGN_OR_RETURN(Record run, Score(subject.forward(), needle));
    const ridge::FillPlan& plan = subject.plan();
    run["outliers"] = plan.outliers.size();
    run["selected"] = plan.selected.size();
    out["runs"].push_back(std::move(run));
  }
  return out;
}

Record NeedleMeasure::MakeRecord(const Record& variant, absl::Span<const Record> runs) const {
  const std::vector<bool> solved = Solved(runs);
  Record out = Record::object();
  out["measure"] = "needle";
  out.update(variant);
  out["tail"] = options_.tail;
  for (const char* count : {"outliers", "selected"}) {
    if (!runs.front().contains(count)) continue;
    out[count] = Mean(runs, [&](const Record& run) { return run[count].get<double>(); });
  }
  out["length"] = options_.length;
  out["seed"] = options_.seed;
  out["task"] = std::string(Name(options_.task));
  out["evidence"] = std::string(Name(options_.evidence));
  out["figure"] = "accuracy";
  out.update(Accuracy(std::count(solved.begin(), solved.end(), true), items()));
  out["recall"] = Mean(runs, Recall);
  out["answer_nll"] = Mean(runs, [](const Record& run) { return run["nll"].get<double>(); });
  out["by_depth"] = Record::array();
  for (int bucket = 0; bucket < kDepthBuckets; ++bucket) {
    std::vector<bool> there;
    for (const NeedleItem& item : items_)
      there.push_back(static_cast<int>(item.depth * kDepthBuckets) == bucket);
    Record of_bucket = {{"from", Rounded(bucket / double{kDepthBuckets})},
                        {"to", Rounded((bucket + 1) / double{kDepthBuckets})}};
    of_bucket.update(Accuracy(solved, there));
    out["by_depth"].push_back(std::move(of_bucket));
  }
  out["values"] = Record::array();
  for (bool value : solved) out["values"].push_back(value ? 1 : 0);
  return out;
}

std::vector<Record> NeedleMeasure::Records(absl::Span<const Record> values) const {
  std::vector<Record> exact;
  for (const Record& item : values) exact.push_back(item["exact"]);
  const std::vector<bool> by_exact = Solved(exact);
  std::vector<Record> out = {
      MakeRecord({{"mode", "EXACT"}, {"fill", "none"}, {"selection", "none"}, {"share", 0.0}}, exact)};
  for (size_t i = 0; i < variants_.size(); ++i) {
    const std::vector<Record> runs = RunsOf(values, i);
    const std::vector<bool> solved = Solved(runs);
    Record record = MakeRecord(ToRecord(variants_[i]), runs);
    record["on_solved"] = Accuracy(solved, by_exact);
    record["against_exact"] = Against(by_exact, solved);
    const auto identity = std::find_if(variants_.begin(), variants_.end(), [&](const Variant& v) {
      return v.fill == Fill::kIdentity && v.split == variants_[i].split;
    });
    if (identity != variants_.end() && variants_[i].fill != Fill::kIdentity) {
      record["against_identity"] = Against(Solved(RunsOf(values, identity - variants_.begin())), solved);
    }
    out.push_back(std::move(record));
  }
  return out;
}

}  // namespace ridgefill::eval
