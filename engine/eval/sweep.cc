#include "engine/eval/sweep.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/eval/text.h"
#include "engine/ridge/selection.h"

namespace ridgefill::eval {
namespace {

// Scored rows [begin, end), counted from the tail's first one.
struct Window {
  const char* name;
  int64_t begin, end;
};

// The last prompt row predicts the continuation.
std::array<Window, 2> Windows(int64_t tail, int64_t continuation) {
  return {{{"tail", 0, tail - 1}, {"continuation", tail - 1, tail - 1 + continuation}}};
}

// Mean over a window of what `f` gives for one row; scores[0] is of the tail's first.
template <typename Score, typename F>
double Mean(absl::Span<const Score> scores, const Window& window, F f) {
  double sum = 0;
  for (int64_t i = window.begin; i < window.end; ++i) sum += f(scores[i]);
  return sum / static_cast<double>(window.end - window.begin);
}

double ExactNll(absl::Span<const TokenScore> scores, const Window& window) {
  return Mean(scores, window, [](const TokenScore& score) { return score.nll; });
}

// A point's figures of one window of one document.
Record WindowValues(absl::Span<const TokenScore> exact, absl::Span<const PairScore> pairs,
                    const Window& window) {
  const double nll = Mean(pairs, window, [](const PairScore& pair) { return pair.nll; });
  const double kl = Mean(pairs, window, [](const PairScore& pair) { return pair.kl; });
  const double top1 = Mean(pairs, window, [](const PairScore& pair) { return pair.agree ? 1.0 : 0.0; });
  return {{"dnll", Rounded(nll - ExactNll(exact, window))}, {"kl", Rounded(kl)}, {"top1", Rounded(top1)}};
}

// One figure of one point, by document.
std::vector<double> Column(absl::Span<const Record> documents, size_t point, const char* window,
                           const char* figure) {
  std::vector<double> out;
  for (const Record& document : documents) {
    out.push_back(document["points"][point][window][figure].get<double>());
  }
  return out;
}

double MeanCount(absl::Span<const Record> documents, size_t point, const char* count) {
  double sum = 0;
  for (const Record& document : documents) sum += document["points"][point][count].get<double>();
  return sum / static_cast<double>(documents.size());
}

double Median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const size_t half = x.size() / 2;
  return x.size() % 2 == 1 ? x[half] : (x[half - 1] + x[half]) / 2;
}

}  // namespace

absl::StatusOr<SweepMeasure> SweepMeasure::Create(std::vector<std::vector<int32_t>> documents,
                                                  const SweepOptions& options) {
  RF_RETURN_IF_ERROR(CheckDocuments(documents, options.tails, options.continuation));
  if (options.maps.empty() || options.variants.empty()) {
    return base::Error(absl::StatusCode::kInvalidArgument, "EVAL_POINTS",
                       "a sweep needs at least one map set, and one fill or share");
  }
  RF_CHECK(options.runs == 0 || options.clock != nullptr);
  return SweepMeasure(std::move(documents), options);
}

SweepMeasure::SweepMeasure(std::vector<std::vector<int32_t>> documents, const SweepOptions& options)
    : documents_(std::move(documents)), options_(options), tokens_(documents_.front().size()) {
  for (auto it = options_.maps.rbegin(); it != options_.maps.rend(); ++it) {
    splits_.push_back(it->first);
    for (size_t tail = 0; tail < options_.tails.size(); ++tail) {
      for (size_t variant = 0; variant < options_.variants.size(); ++variant) {
        points_.push_back({it->first, tail, variant});
      }
    }
  }
}

std::string SweepMeasure::name() const { return absl::StrCat("sweep ", tokens_); }

Record SweepMeasure::Config() const {
  Record variants = Record::array();
  for (const Variant& variant : options_.variants) variants.push_back(ToRecord(variant));
  Record maps = Record::array();
  for (const auto& [split, digest] : options_.maps) maps.push_back({split, digest});
  return {{"values", "sweep 1"},
          {"maps", std::move(maps)},
          {"tails", options_.tails},
          {"continuation", options_.continuation},
          {"variants", std::move(variants)}};
}

int64_t SweepMeasure::items() const {
  const size_t timed = options_.runs > 0 ? splits_.size() : 0;
  return static_cast<int64_t>(documents_.size() + timed);
}

int64_t SweepMeasure::tokens(int64_t item) const { return IsDocument(item) ? tokens_ : prompt_tokens(); }

double SweepMeasure::Work(const Subject& subject, int64_t item) const {
  const double rows = static_cast<double>(tokens(item));
  double late = 0;  // of all points of a split
  for (const int64_t tail : options_.tails) {
    const double scored = static_cast<double>(IsDocument(item) ? tail + options_.continuation : tail);
    const double row_work = IsDocument(item) ? kLateWork + kHeadWork : kLateWork;
    late += static_cast<double>(options_.variants.size()) * (rows * kFillWork + scored * row_work);
  }
  if (IsDocument(item)) return rows + late * static_cast<double>(splits_.size());
  const size_t split = item - documents_.size();
  const double lower = static_cast<double>(splits_[split]) / subject.model().config().layers * rows;
  const double points = static_cast<double>(options_.tails.size() * options_.variants.size());
  return (1 + options_.runs) * (rows + points * lower + late);
}

std::string SweepMeasure::Digest(int64_t item) const {
  if (IsDocument(item)) return TokensDigest(documents_[item]);
  return absl::StrCat("times ", splits_[item - documents_.size()], " ", options_.runs, " ", options_.threads,
                      " ", TokensDigest(documents_.front()));
}

Variant SweepMeasure::VariantOf(const Point& point) const {
  Variant variant = options_.variants[point.variant];
  variant.split = point.split;
  return variant;
}

absl::StatusOr<Record> SweepMeasure::Values(Subject& subject, int64_t item) const {
  if (IsDocument(item)) return DocumentValues(subject, documents_[item]);
  return Times(subject, splits_[item - documents_.size()]);
}

absl::StatusOr<Record> SweepMeasure::DocumentValues(Subject& subject, const std::vector<int32_t>& ids) const {
  FilledForward& forward = subject.forward();
  const int64_t longest = *std::max_element(options_.tails.begin(), options_.tails.end());
  const int64_t first = prompt_tokens() - longest, end = tokens_ - 1;  // of the scored rows
  RF_RETURN_IF_ERROR(subject.Lower(ids, prompt_tokens()));
  RF_RETURN_IF_ERROR(subject.RunExact());
  RF_ASSIGN_OR_RETURN(const KeptLogits exact, forward.scorer().Keep(forward.Rows(first, end)));
  const auto exact_scores = Scorer::Score(exact, forward.TokensAfter(first, end));
  Record out = {{"exact", Record::array()}, {"points", Record::array()}};
  for (const int64_t tail : options_.tails) {
    Record nll = Record::object();
    for (const Window& window : Windows(tail, options_.continuation)) {
      nll[window.name] = Rounded(ExactNll(absl::MakeConstSpan(exact_scores).subspan(longest - tail), window));
    }
    out["exact"].push_back(std::move(nll));
  }
  for (const Point& point : points_) {
    const int64_t skip = longest - options_.tails[point.tail];
    RF_ASSIGN_OR_RETURN(Record values, PointValues(subject, point, exact, skip,
                                                   absl::MakeConstSpan(exact_scores).subspan(skip)));
    out["points"].push_back(std::move(values));
  }
  return out;
}

absl::StatusOr<Record> SweepMeasure::PointValues(Subject& subject, const Point& point,
                                                 const KeptLogits& exact, int64_t skip,
                                                 absl::Span<const TokenScore> exact_scores) const {
  FilledForward& forward = subject.forward();
  const Shape shape = ShapeOf(point.tail);
  const int64_t begin = shape.tail_begin(), end = tokens_ - 1;
  RF_RETURN_IF_ERROR(subject.RunFilled(VariantOf(point), shape));
  RF_ASSIGN_OR_RETURN(
      const std::vector<PairScore> pairs,
      forward.scorer().Compare(exact, skip, forward.Rows(begin, end), forward.TokensAfter(begin, end)));
  const ridge::FillPlan plan = subject.plan();
  Record out = {{"outliers", plan.outliers.size()},
                {"selected", plan.selected.size()},
                {"filled", plan.filled_count()}};
  for (const Window& window : Windows(shape.tail, options_.continuation)) {
    out[window.name] = WindowValues(exact_scores, pairs, window);
  }
  return out;
}

// A subject of its own, so that the lower layers end at the split.
absl::StatusOr<Record> SweepMeasure::Times(Subject& subject, int split) const {
  Subject::Options options;
  options.max_tokens = prompt_tokens();
  RF_ASSIGN_OR_RETURN(const auto alone, Subject::Create(subject.model(), subject.maps(split), options));
  std::vector<Point> points;
  std::copy_if(points_.begin(), points_.end(), std::back_inserter(points),
               [&](const Point& point) { return point.split == split; });
  Record exact_ms = Record::array(), ms(points.size(), Record::array());
  for (int run = -1; run < options_.runs; ++run) {  // run -1 warms up
    RF_ASSIGN_OR_RETURN(const double exact, Milliseconds(*alone, nullptr));
    if (run >= 0) exact_ms.push_back(Rounded(exact));
    for (size_t i = 0; i < points.size(); ++i) {
      RF_ASSIGN_OR_RETURN(const double filled, Milliseconds(*alone, &points[i]));
      if (run >= 0) ms[i].push_back(Rounded(filled));
    }
  }
  return Record{{"exact_ms", std::move(exact_ms)}, {"ms", std::move(ms)}};
}

// From ids to the first token's logits; null: exact.
absl::StatusOr<double> SweepMeasure::Milliseconds(Subject& subject, const Point* point) const {
  const auto prompt = absl::MakeConstSpan(documents_.front()).subspan(0, prompt_tokens());
  // As an engine would: the lower layers' attention is looked at where the selector needs it.
  ridge::FillDecision decision;
  if (point != nullptr) {
    decision.mode = VariantOf(*point).mode();
    decision.selector = VariantOf(*point).selector;
    decision.share = VariantOf(*point).share;
  }
  const Shape shape = point != nullptr ? ShapeOf(point->tail) : Shape();
  const bool looks =
      ridge::NeedsAttentionScores(decision) && ridge::HasRoomForAWindow(decision, shape.tail_begin());
  const absl::Duration start = options_.clock->Monotonic();
  RF_RETURN_IF_ERROR(subject.Lower(prompt, looks ? prompt_tokens() : 0));
  if (point == nullptr) {
    RF_RETURN_IF_ERROR(subject.RunExact());
  } else {
    RF_RETURN_IF_ERROR(subject.RunFilled(VariantOf(*point), shape));
  }
  RF_RETURN_IF_ERROR(subject.forward().Logits(prompt_tokens() - 1).status());
  return absl::ToDoubleMilliseconds(options_.clock->Monotonic() - start);
}

Record SweepMeasure::TimeRecord(const Record& times, size_t in_split) const {
  const auto exact = times["exact_ms"].get<std::vector<double>>();
  const auto filled = times["ms"][in_split].get<std::vector<double>>();
  return {{"ms", Rounded(Median(filled))},
          {"ms_min", *std::min_element(filled.begin(), filled.end())},
          {"exact_ms", Rounded(Median(exact))},
          {"exact_ms_min", *std::min_element(exact.begin(), exact.end())},
          {"runs", options_.runs},
          {"prompt_tokens", prompt_tokens()},
          {"threads", options_.threads},
          {"of", "forward pass"}};
}

Record SweepMeasure::MakeRecord(absl::Span<const Record> values, size_t index, size_t window_index) const {
  const Point& point = points_[index];
  const auto documents = values.subspan(0, documents_.size());
  const int64_t tail = options_.tails[point.tail];
  const Window rows = Windows(tail, options_.continuation)[window_index];
  const char* const window = rows.name;
  Record out = Record::object();
  out["measure"] = "sweep";
  out.update(ToRecord(VariantOf(point)));
  out["maps"] = ShortDigest(options_.maps.at(point.split));
  out["tail"] = tail;
  for (const char* count : {"outliers", "selected"}) out[count] = Rounded(MeanCount(documents, index, count));
  out["length"] = tokens_;
  out["prompt_tokens"] = prompt_tokens();
  out["filled_share"] = Rounded(MeanCount(documents, index, "filled") / static_cast<double>(prompt_tokens()));
  out["seed"] = options_.seed;
  out["documents_digest"] = DocumentsDigest(documents_);
  out["window"] = window;
  out["window_tokens"] = rows.end - rows.begin;
  AddFigures(out, "dnll", Column(documents, index, window, "dnll"));
  double exact_nll = 0;
  for (const Record& document : documents) exact_nll += document["exact"][point.tail][window].get<double>();
  out["exact_nll"] = Rounded(exact_nll / static_cast<double>(documents.size()));
  out["kl"] = Figures(Column(documents, index, window, "kl"));
  out["top1"] = Figures(Column(documents, index, window, "top1"));
  if (options_.runs == 0) return out;
  const size_t in_split = options_.tails.size() * options_.variants.size();
  const Record times = TimeRecord(values[documents_.size() + index / in_split], index % in_split);
  out["ttft_ratio"] = Rounded(times["ms"].get<double>() / times["exact_ms"].get<double>());
  out["ttft"] = times;
  return out;
}

std::vector<Record> SweepMeasure::Records(absl::Span<const Record> values) const {
  std::vector<Record> out;
  for (size_t point = 0; point < points_.size(); ++point) {
    for (size_t window = 0; window < 2; ++window) out.push_back(MakeRecord(values, point, window));
  }
  return out;
}

}  // namespace ridgefill::eval
