#include "engine/eval/splice.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/eval/text.h"

namespace ridgefill::eval {
namespace {

constexpr const char* kWindows[] = {"tail", "continuation"};
constexpr const char* kHalves[] = {"k", "v", "both"};

using Bytes = std::vector<char>;  // a layer's K, then V (kernels::KvSpan)

// The exact bytes with the filled ones of a half in their place.
Bytes Mixed(const Bytes& exact, const Bytes& filled, absl::string_view half) {
  const auto middle = static_cast<ptrdiff_t>(exact.size() / 2);
  Bytes out = exact;
  if (half != "v") std::copy(filled.begin(), filled.begin() + middle, out.begin());
  if (half != "k") std::copy(filled.begin() + middle, filled.end(), out.begin() + middle);
  return out;
}

// Of one window: mean NLL less that of the exact run, and mean KL(exact || mixed).
struct Loss {
  double dnll = 0, kl = 0;
};

// One document: its exact and its filled cache, and what any mixture of them costs.
class Splicer {
 public:
  Splicer(Subject& subject, const Variant& variant, const Shape& shape, int64_t tokens)
      : forward_(subject.forward()),
        subject_(subject),
        variant_(variant),
        shape_(shape),
        tokens_(tokens),
        first_layer_(subject.manifest().split + 1),
        end_layer_(subject.model().config().layers) {}

  absl::Status Begin(const std::vector<int32_t>& ids) {
    RF_RETURN_IF_ERROR(subject_.Lower(ids, shape_.prompt_tokens));
    RF_RETURN_IF_ERROR(subject_.RunExact());
    RF_ASSIGN_OR_RETURN(exact_logits_, forward_.scorer().Keep(forward_.Rows(begin(), end())));
    exact_scores_ = Scorer::Score(exact_logits_, forward_.TokensAfter(begin(), end()));
    RF_ASSIGN_OR_RETURN(exact_, ReadLayers());
    RF_RETURN_IF_ERROR(subject_.RunFilled(variant_, shape_));
    plan_ = subject_.plan();
    RF_ASSIGN_OR_RETURN(filled_, ReadLayers());
    return absl::OkStatus();
  }

  // Layers [first, last] mixed, all others exact: the loss by window.
  absl::StatusOr<std::vector<Loss>> Splice(int first, int last, absl::string_view half) {
    for (int layer = first_layer_; layer < end_layer_; ++layer) {
      const size_t i = layer - first_layer_;
      const bool mixed = first <= layer && layer <= last;
      RF_RETURN_IF_ERROR(forward_.WriteKv(layer, mixed ? Mixed(exact_[i], filled_[i], half) : exact_[i]));
    }
    RF_RETURN_IF_ERROR(forward_.LateOverCache(plan_));
    RF_ASSIGN_OR_RETURN(const auto scores,
                        forward_.scorer().Compare(exact_logits_, 0, forward_.Rows(begin(), end()),
                                                  forward_.TokensAfter(begin(), end())));
    const int64_t boundary = shape_.tail - 1;  // the last prompt row predicts the continuation
    return std::vector<Loss>{LossOf(scores, 0, boundary), LossOf(scores, boundary, end() - begin())};
  }

  int first_layer() const { return first_layer_; }
  int end_layer() const { return end_layer_; }
  const ridge::FillPlan& plan() const { return plan_; }

 private:
  absl::StatusOr<std::vector<Bytes>> ReadLayers() {
    std::vector<Bytes> out;
    for (int layer = first_layer_; layer < end_layer_; ++layer) {
      RF_ASSIGN_OR_RETURN(Bytes bytes, forward_.ReadKv(layer));
      out.push_back(std::move(bytes));
    }
    return out;
  }

  Loss LossOf(const std::vector<PairScore>& scores, int64_t first, int64_t last) const {
    Loss out;
    for (int64_t i = first; i < last; ++i) {
      out.dnll += (scores[i].nll - exact_scores_[i].nll) / static_cast<double>(last - first);
      out.kl += scores[i].kl / static_cast<double>(last - first);
    }
    return out;
  }

  // Of the scored rows.
  int64_t begin() const { return shape_.tail_begin(); }
  int64_t end() const { return tokens_ - 1; }

  FilledForward& forward_;
  Subject& subject_;
  const Variant& variant_;
  const Shape shape_;
  const int64_t tokens_;
  const int first_layer_, end_layer_;
  ridge::FillPlan plan_;
  std::vector<TokenScore> exact_scores_;
  KeptLogits exact_logits_;
  std::vector<Bytes> exact_, filled_;  // by layer from first_layer_ on
};

// Of one cell, by document.
std::vector<double> Column(absl::Span<const Record> values, size_t cell, const char* window,
                           const char* figure) {
  std::vector<double> out;
  for (const Record& document : values) {
    out.push_back(document["cells"][cell][window][figure].get<double>());
  }
  return out;
}

double Mean(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

}  // namespace

absl::StatusOr<SpliceMeasure> SpliceMeasure::Create(std::vector<std::vector<int32_t>> documents,
                                                    const SpliceOptions& options) {
  RF_RETURN_IF_ERROR(CheckDocuments(documents, {options.tail}, options.continuation));
  return SpliceMeasure(std::move(documents), options);
}

std::string SpliceMeasure::name() const { return absl::StrCat("splice ", tokens_); }

Record SpliceMeasure::Config() const {
  return {{"values", "splice 1"},
          {"tail", options_.tail},
          {"continuation", options_.continuation},
          {"variant", ToRecord(options_.variant)}};
}

double SpliceMeasure::Work(const Subject& subject, int64_t) const {
  const int layers = subject.model().config().layers - subject.manifest().split - 1;
  const double cells = static_cast<double>(std::size(kHalves)) * (1 + layers);
  const double scored = static_cast<double>(options_.tail + options_.continuation);
  return static_cast<double>(tokens_) * (1 + kFillWork) + cells * scored * (kLateWork + kHeadWork);
}

absl::StatusOr<Record> SpliceMeasure::Values(Subject& subject, int64_t item) const {
  Splicer splicer(subject, options_.variant, shape(), tokens_);
  RF_RETURN_IF_ERROR(splicer.Begin(documents_[item]));
  Record cells = Record::array();
  const auto add = [&](const Record& layers, int first, int last) -> absl::Status {
    for (const char* half : kHalves) {
      RF_ASSIGN_OR_RETURN(const std::vector<Loss> losses, splicer.Splice(first, last, half));
      Record cell = {{"layers", layers}, {"half", half}};
      for (size_t w = 0; w < losses.size(); ++w) {
        cell[kWindows[w]] = {{"dnll", Rounded(losses[w].dnll)}, {"kl", Rounded(losses[w].kl)}};
      }
      cells.push_back(std::move(cell));
    }
    return absl::OkStatus();
  };
  RF_RETURN_IF_ERROR(add("all", splicer.first_layer(), splicer.end_layer() - 1));
  for (int layer = splicer.first_layer(); layer < splicer.end_layer(); ++layer) {
    RF_RETURN_IF_ERROR(add(layer, layer, layer));
  }
  return Record{{"outliers", splicer.plan().outliers.size()}, {"cells", std::move(cells)}};
}

Record SpliceMeasure::Base(absl::Span<const Record> values, const char* window) const {
  Record out = Record::object();
  out["measure"] = "splice";
  out.update(ToRecord(options_.variant));
  out["tail"] = options_.tail;
  std::vector<double> outliers;
  for (const Record& document : values) outliers.push_back(document["outliers"].get<double>());
  out["outliers"] = Rounded(Mean(outliers));
  out["length"] = tokens_;
  out["prompt_tokens"] = tokens_ - options_.continuation;
  out["seed"] = options_.seed;
  out["documents_digest"] = DocumentsDigest(documents_);
  out["window"] = window;
  return out;
}

Record SpliceMeasure::Summary(absl::Span<const Record> values, const char* window) const {
  std::vector<double> k = Column(values, 0, window, "dnll");
  const std::vector<double> v = Column(values, 1, window, "dnll");
  for (size_t i = 0; i < k.size(); ++i) k[i] -= v[i];
  const double k_kl = Mean(Column(values, 0, window, "kl")), v_kl = Mean(Column(values, 1, window, "kl"));
  Record out = Base(values, window);
  out["layers"] = "all";
  out["half"] = "k_less_v";
  AddFigures(out, "dnll", k);
  out["k_share"] = k_kl + v_kl > 0 ? Rounded(k_kl / (k_kl + v_kl)) : 0.0;
  const Record& cells = values.front()["cells"];
  std::vector<Record> ranked;
  for (size_t cell = std::size(kHalves); cell < cells.size(); cell += std::size(kHalves)) {
    Record layer = Record::object();
    layer["layer"] = cells[cell]["layers"];
    for (size_t half = 0; half < std::size(kHalves); ++half) {
      layer[kHalves[half]] = Rounded(Mean(Column(values, cell + half, window, "kl")));
    }
    ranked.push_back(std::move(layer));
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Record& a, const Record& b) { return a["both"] > b["both"]; });
  out["layers_by_kl"] = ranked;
  return out;
}

std::vector<Record> SpliceMeasure::Records(absl::Span<const Record> values) const {
  std::vector<Record> out;
  for (const char* window : kWindows) {
    const Record& cells = values.front()["cells"];
    for (size_t cell = 0; cell < cells.size(); ++cell) {
      Record record = Base(values, window);
      record["layers"] = cells[cell]["layers"];
      record["half"] = cells[cell]["half"];
      AddFigures(record, "dnll", Column(values, cell, window, "dnll"));
      record["kl"] = Figures(Column(values, cell, window, "kl"));
      out.push_back(std::move(record));
    }
    out.push_back(Summary(values, window));
  }
  return out;
}

}  // namespace ridgefill::eval
