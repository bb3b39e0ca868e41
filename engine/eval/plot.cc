#include "engine/eval/plot.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "engine/base/status.h"

namespace ridgefill::eval {
namespace {

constexpr double kWidth = 720, kHeight = 420, kLeft = 80, kRight = 170, kTop = 40, kBottom = 60;
// Told apart by most eyes (Okabe and Ito 2008).
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Label(double x, double y, const char* anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                         Escaped(text));
}

// A round step that cuts `range` into four to eight.
double Step(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 4)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (range / (power * factor) <= 8) return power * factor;
  }
  return 10 * power;
}

// Where things stand on the paper.
class Axes {
 public:
  explicit Axes(const Chart& chart) {
    for (const Series& series : chart.series) {
      for (const Point& point : series.points) {
        if (Index(point.x) == categories_.size()) categories_.push_back(point.x);
        low_ = std::min({low_, point.low, point.mean});
        high_ = std::max({high_, point.high, point.mean});
      }
    }
    if (high_ <= low_) high_ = low_ + 1;
    step_ = Step(high_ - low_);
    low_ = std::floor(low_ / step_) * step_;
    high_ = std::ceil(high_ / step_) * step_;
  }

  double X(const std::string& category, double shift) const {
    const double slot = (kWidth - kLeft - kRight) / static_cast<double>(categories_.size());
    return kLeft + slot * (static_cast<double>(Index(category)) + 0.5 + shift);
  }
  double Y(double value) const {
    return kTop + (high_ - value) / (high_ - low_) * (kHeight - kTop - kBottom);
  }

  std::string Draw() const {
    std::string out;
    for (int i = 0; low_ + i * step_ <= high_ + step_ / 2; ++i) {
      const double value = low_ + i * step_, y = Y(value);
      const bool zero = std::fabs(value) < step_ / 2;
      absl::StrAppendFormat(&out, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"%s\"/>\n", kLeft, y, kWidth - kRight,
                            zero ? "#444" : "#ddd");
      out += Label(kLeft - 8, y + 4, "end", absl::StrFormat("%.4g", zero ? 0.0 : value));
    }
    for (const std::string& category : categories_) {
      out += Label(X(category, 0), kHeight - kBottom + 18, "middle", category);
    }
    return out;
  }

 private:
  size_t Index(const std::string& category) const {
    return std::find(categories_.begin(), categories_.end(), category) - categories_.begin();
  }

  std::vector<std::string> categories_;
  double low_ = 0, high_ = 0, step_ = 1;
};

// A line with dots and whiskers; series stand a little beside each other.
std::string DrawSeries(const Series& series, const Axes& axes, double shift, const char* colour) {
  std::string line, marks;
  for (const Point& point : series.points) {
    const double x = axes.X(point.x, shift), y = axes.Y(point.mean);
    absl::StrAppendFormat(&line, "%s%.1f %.1f", line.empty() ? "M" : "L", x, y);
    absl::StrAppendFormat(&marks, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"%s\"/>\n", x, axes.Y(point.low),
                          axes.Y(point.high), colour);
    absl::StrAppendFormat(&marks, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", x, y, colour);
  }
  return absl::StrFormat("<path d=\"%s\" stroke=\"%s\" stroke-width=\"2\" fill=\"none\"/>\n%s", line, colour,
                         marks);
}

std::string Text(const Record& record, const char* key) {
  if (!record.contains(key)) return "";
  return record[key].is_string() ? record[key].get<std::string>() : record[key].dump();
}

Point PointOf(const std::string& x, const Record& figures) {
  return {x, figures["mean"].get<double>(), figures["low"].get<double>(), figures["high"].get<double>()};
}

std::string RunName(const Record& r) {
  if (Text(r, "mode") == "EXACT") return "exact";
  const std::string selection = Text(r, "selection");
  if (selection == "none") return Text(r, "fill");
  const double share = r.contains("share") && r["share"].is_number() ? r["share"].get<double>() : 0;
  return absl::StrFormat("%s, %s %.3g", Text(r, "fill"), selection, share);
}

// What records of one chart agree in beside its name.
std::string Agreed(const Record& r, std::initializer_list<const char*> more) {
  std::string out;
  for (const char* key : {"model", "weights", "maps"}) absl::StrAppend(&out, Text(r, key), "\n");
  for (const char* key : more) absl::StrAppend(&out, Text(r, key), "\n");
  return out;
}

std::string NoteOf(const Record& r) {
  std::string out = absl::StrCat("maps ", Text(r, "maps"));
  if (r.contains("documents_digest")) absl::StrAppend(&out, ", documents ", Text(r, "documents_digest"));
  if (r.contains("seed")) absl::StrAppend(&out, ", seed ", Text(r, "seed"));
  return out;
}

// The first field that a chart needs and that is not there or of another type; "" when all is well.
std::string BadName(const Record& r, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (!r.contains(name) || !(r[name].is_string() || r[name].is_number())) return name;
  }
  return "";
}

std::string BadFigures(const Record& figures) {
  if (!figures.is_object()) return "mean";
  for (const char* name : {"mean", "low", "high"}) {
    if (!figures.contains(name) || !figures[name].is_number()) return name;
  }
  return "";
}

std::string BadBuckets(const Record& r, const char* name, std::initializer_list<const char*> edges) {
  if (!r.contains(name) || !r[name].is_array()) return name;
  for (const Record& bucket : r[name]) {
    std::string bad = bucket.is_object() ? BadName(bucket, edges) : "";
    const bool empty = bad.empty() && bucket.is_object() && bucket.contains("items") && bucket["items"] == 0;
    if (bad.empty() && !empty) bad = BadFigures(bucket);
    if (!bad.empty()) return absl::StrCat(name, "/", bad);
  }
  return "";
}

std::string BadField(const Record& r) {
  const std::string measure = Text(r, "measure");
  const bool nll = measure == "nll" && r.contains("by_distance"), needle = measure == "needle";
  const bool splice = measure == "splice" && Text(r, "half") != "k_less_v";
  if (!nll && !needle && !splice) return "";
  std::string bad = BadName(r, {"model", "split", "mode", "fill", "selection", "tail", "length"});
  if (!bad.empty()) return bad;
  if (nll) return BadBuckets(r, "by_distance", {"from"});
  if (splice) {
    bad = BadName(r, {"window", "layers", "half"});
    if (bad.empty() && (!r.contains("kl") || !BadFigures(r["kl"]).empty())) bad = "kl";
    return bad;
  }
  bad = BadName(r, {"task", "evidence"});
  if (bad.empty()) bad = BadFigures(r);
  return bad.empty() ? BadBuckets(r, "by_depth", {"from", "to", "items"}) : bad;
}

// Charts by name, in the order in which they come.
class Charts {
 public:
  struct Key {
    std::string name, agreed;
    bool operator==(const Key&) const = default;
  };
  void Add(const Key& key, const Chart& head, const std::string& series, const Point& point) {
    auto chart = std::find_if(charts_.begin(), charts_.end(), [&](const auto& c) { return c.first == key; });
    if (chart == charts_.end()) chart = charts_.insert(charts_.end(), {key, head});
    auto& all = chart->second.series;
    auto found = std::find_if(all.begin(), all.end(), [&](const Series& s) { return s.name == series; });
    if (found == all.end()) found = all.insert(all.end(), {series, {}});
    auto& points = found->points;
    const auto same =
        std::find_if(points.begin(), points.end(), [&](const Point& p) { return p.x == point.x; });
    if (same == points.end()) {
      points.push_back(point);
    } else {
      *same = point;
    }
  }
  std::vector<std::pair<std::string, Chart>> Take() {
    std::vector<std::pair<std::string, Chart>> out;
    std::map<std::string, int> named;
    for (auto& [key, chart] : charts_) {
      const int number = ++named[key.name];
      out.emplace_back(number == 1 ? key.name : absl::StrCat(key.name, "-", number), std::move(chart));
    }
    return out;
  }

 private:
  std::vector<std::pair<Key, Chart>> charts_;
};

void AddDistances(const Record& r, Charts& charts) {
  const std::string setting = absl::StrCat("split ", Text(r, "split"), ", tail ", Text(r, "tail"), ", ",
                                           Text(r, "length"), " tokens");
  const Chart head = {absl::StrCat("Loss by distance from the bulk: ", Text(r, "model"), ", ", setting),
                      "rows from the tail's first on",
                      "nats per token over exact",
                      {},
                      NoteOf(r)};
  const Charts::Key key = {
      absl::StrCat("distance-s", Text(r, "split"), "-t", Text(r, "tail"), "-n", Text(r, "length")),
      Agreed(r, {"documents_digest", "prompt_tokens"})};
  for (const Record& bucket : r["by_distance"]) {
    charts.Add(key, head, RunName(r), PointOf(absl::StrCat(Text(bucket, "from"), "-"), bucket));
  }
}

void AddNeedle(const Record& r, Charts& charts) {
  const std::string task = Text(r, "task"), split = Text(r, "split"), evidence = Text(r, "evidence");
  const std::string what =
      absl::StrCat(task, " in the ", evidence, ": ", Text(r, "model"), ", split ", split);
  const std::string name = absl::StrCat("needle-", task, "-", evidence, "-s", split);
  const std::string agreed = Agreed(r, {"seed"});
  charts.Add({name, agreed}, {absl::StrCat("Needle, ", what), "tokens/tail", "accuracy", {}, NoteOf(r)},
             RunName(r), PointOf(absl::StrCat(Text(r, "length"), "/", Text(r, "tail")), r));
  for (const Record& bucket : r["by_depth"]) {
    if (bucket["items"] == 0) continue;
    charts.Add({absl::StrCat(name, "-t", Text(r, "tail"), "-n", Text(r, "length")), agreed},
               {absl::StrCat("Needle by depth, ", what, ", tail ", Text(r, "tail"), ", ", Text(r, "length"),
                             " tokens"),
                "depth of the line, as a share of the prompt",
                "accuracy",
                {},
                NoteOf(r)},
               RunName(r), PointOf(absl::StrCat(Text(bucket, "from"), "-", Text(bucket, "to")), bucket));
  }
}

void AddSplice(const Record& r, Charts& charts) {
  if (Text(r, "half") == "k_less_v") return;
  const std::string split = Text(r, "split"), window = Text(r, "window");
  charts.Add({absl::StrCat("splice-", window, "-s", split, "-t", Text(r, "tail"), "-n", Text(r, "length")),
              Agreed(r, {"documents_digest", "prompt_tokens", "mode", "fill", "selection", "share"})},
             {absl::StrCat("Filled K, V or both in one late layer, ", window, ": ", Text(r, "model"),
                           ", split ", split, ", tail ", Text(r, "tail"), ", ", RunName(r)),
              "layer",
              "KL from the exact run, nats",
              {},
              NoteOf(r)},
             Text(r, "half"), PointOf(Text(r, "layers"), r["kl"]));
}

}  // namespace

std::string ToSvg(const Chart& chart) {
  const Axes axes(chart);
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  out += Label(kLeft, 20, "start", chart.title);
  if (!chart.note.empty()) out += Label(kLeft, 34, "start", chart.note);
  out += Label((kLeft + kWidth - kRight) / 2, kHeight - 16, "middle", chart.x_label);
  absl::StrAppendFormat(&out, "<g transform=\"translate(18 %.1f) rotate(-90)\">%s</g>\n", kHeight / 2,
                        Label(0, 0, "middle", chart.y_label));
  out += axes.Draw();
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const double shift = 0.08 * (static_cast<double>(i) - (static_cast<double>(chart.series.size()) - 1) / 2);
    const char* colour = kColours[i % std::size(kColours)];
    out += DrawSeries(chart.series[i], axes, shift, colour);
    const double y = kTop + 10 + 18 * static_cast<double>(i);
    absl::StrAppendFormat(&out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n",
                          kWidth - kRight + 18, y - 4, colour);
    out += Label(kWidth - kRight + 28, y, "start", chart.series[i].name);
  }
  return out + "</svg>\n";
}

absl::StatusOr<std::vector<Record>> ParseRecords(absl::string_view lines) {
  std::vector<Record> out;
  while (!lines.empty()) {
    const size_t end = lines.find('\n');
    if (end == absl::string_view::npos) break;  // cut short: a run that was killed
    out.push_back(Record::parse(lines.begin(), lines.begin() + end, nullptr, /*allow_exceptions=*/false));
    if (!out.back().is_object()) {
      return base::Error(absl::StatusCode::kDataLoss, "EVAL_FILE_DAMAGED",
                         absl::StrCat("line ", out.size(), " is not a JSON object"));
    }
    if (const std::string field = BadField(out.back()); !field.empty()) {
      return base::Error(absl::StatusCode::kDataLoss, "EVAL_FILE_DAMAGED",
                         absl::StrCat("line ", out.size(), " is no record of a measure: its field ", field,
                                      " is missing or of another type"));
    }
    lines.remove_prefix(end + 1);
  }
  return out;
}

std::vector<std::pair<std::string, Chart>> ChartsOf(absl::Span<const Record> records) {
  Charts charts;
  for (const Record& r : records) {
    const std::string measure = Text(r, "measure");
    if (measure == "nll" && r.contains("by_distance")) AddDistances(r, charts);
    if (measure == "needle") AddNeedle(r, charts);
    if (measure == "splice") AddSplice(r, charts);
  }
  return charts.Take();
}

}  // namespace ridgefill::eval
