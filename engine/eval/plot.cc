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
  explicit Axes(const Chart& chart) : numeric_(chart.numeric) {
    for (const Series& series : chart.series) {
      for (const Point& point : series.points) {
        if (Index(point.x) == categories_.size()) categories_.push_back(point.x);
        y_.Take(point.low, point.high);
        y_.Take(point.mean, point.mean);
        x_.Take(point.at, point.at);
      }
    }
    y_.Round();
    x_.Round();
  }

  bool numeric() const { return numeric_; }
  double X(const Point& point, double shift) const {
    if (numeric_) return Across(point.at);
    return Category(point.x, shift);
  }
  double Y(double value) const {
    return kTop + (y_.high - value) / (y_.high - y_.low) * (kHeight - kTop - kBottom);
  }

  std::string Draw() const {
    std::string out;
    for (int i = 0; y_.low + i * y_.step <= y_.high + y_.step / 2; ++i) {
      const double value = y_.low + i * y_.step, y = Y(value);
      const bool zero = std::fabs(value) < y_.step / 2;
      absl::StrAppendFormat(&out, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"%s\"/>\n", kLeft, y, kWidth - kRight,
                            zero ? "#444" : "#ddd");
      out += Label(kLeft - 8, y + 4, "end", absl::StrFormat("%.4g", zero ? 0.0 : value));
    }
    return out + (numeric_ ? DrawNumbers() : DrawCategories());
  }

 private:
  // Values from low to high with marks at each step; 0 is always there in y.
  struct Range {
    double low = 0, high = 0, step = 1;
    bool any = true;
    void Take(double from, double to) {
      low = any ? std::min(low, from) : from;
      high = any ? std::max(high, to) : to;
      any = true;
    }
    void Round() {
      if (high <= low) high = low + 1;
      step = Step(high - low);
      low = std::floor(low / step) * step;
      high = std::ceil(high / step) * step;
    }
  };

  double Across(double value) const {
    return kLeft + (value - x_.low) / (x_.high - x_.low) * (kWidth - kLeft - kRight);
  }
  double Category(const std::string& category, double shift) const {
    const double slot = (kWidth - kLeft - kRight) / static_cast<double>(categories_.size());
    return kLeft + slot * (static_cast<double>(Index(category)) + 0.5 + shift);
  }
  std::string DrawNumbers() const {
    std::string out;
    for (int i = 0; x_.low + i * x_.step <= x_.high + x_.step / 2; ++i) {
      const double value = x_.low + i * x_.step;
      absl::StrAppendFormat(&out, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"#ddd\"/>\n", Across(value), kTop,
                            kHeight - kBottom);
      out += Label(Across(value), kHeight - kBottom + 18, "middle", absl::StrFormat("%.4g", value));
    }
    return out;
  }
  std::string DrawCategories() const {
    std::string out;
    for (const std::string& category : categories_) {
      out += Label(Category(category, 0), kHeight - kBottom + 18, "middle", category);
    }
    return out;
  }
  size_t Index(const std::string& category) const {
    return std::find(categories_.begin(), categories_.end(), category) - categories_.begin();
  }

  const bool numeric_;
  std::vector<std::string> categories_;
  Range y_, x_ = {0, 0, 1, /*any=*/false};
};

// A line with dots and whiskers; series stand a little beside each other.
std::string DrawSeries(const Series& series, const Axes& axes, double shift, const char* colour) {
  std::string line, marks;
  for (const Point& point : series.points) {
    const double x = axes.X(point, shift), y = axes.Y(point.mean);
    if (series.line) absl::StrAppendFormat(&line, "%s%.1f %.1f", line.empty() ? "M" : "L", x, y);
    if (series.line && axes.numeric()) marks += Label(x + 6, y - 6, "start", point.x);
    absl::StrAppendFormat(&marks, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"%s\"/>\n", x, axes.Y(point.low),
                          axes.Y(point.high), colour);
    // What a pointer over it shows.
    const std::string title = absl::StrFormat("%s %s: %.4g", series.name, point.x, point.mean);
    absl::StrAppendFormat(
        &marks, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"><title>%s</title></circle>\n", x, y,
        colour, Escaped(title));
  }
  if (line.empty()) return marks;
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
  const bool sweep = measure == "sweep" && r.contains("ttft_ratio");
  if (!nll && !needle && !splice && !sweep) return "";
  std::string bad = BadName(r, {"model", "split", "mode", "fill", "selection", "tail", "length"});
  if (!bad.empty()) return bad;
  if (nll) return BadBuckets(r, "by_distance", {"from"});
  if (sweep) {
    bad = BadName(r, {"window", "share"});
    if (bad.empty() && !r["ttft_ratio"].is_number()) bad = "ttft_ratio";
    return bad.empty() ? BadFigures(r) : bad;
  }
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
  void Add(const Key& key, const Chart& head, const std::string& series, const Point& point,
           bool line = true) {
    auto chart = std::find_if(charts_.begin(), charts_.end(), [&](const auto& c) { return c.first == key; });
    if (chart == charts_.end()) chart = charts_.insert(charts_.end(), {key, head});
    auto& all = chart->second.series;
    auto found = std::find_if(all.begin(), all.end(), [&](const Series& s) { return s.name == series; });
    if (found == all.end()) found = all.insert(all.end(), {series, {}, line});
    auto& points = found->points;
    const auto same = std::find_if(points.begin(), points.end(),
                                   [&](const Point& p) { return p.x == point.x && p.at == point.at; });
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

// Map sets differ by split: the points of one chart are of several. Their times are compared, so they are of
// one program on one kind of machine.
std::string AgreedSweep(const Record& r) {
  std::string out;
  for (const char* name :
       {"model", "weights", "backend", "isa", "commit", "documents_digest", "prompt_tokens"}) {
    absl::StrAppend(&out, "|", Text(r, name));
  }
  const Record ttft = r.value("ttft", Record::object());
  for (const char* name : {"threads", "prompt_tokens"}) absl::StrAppend(&out, "|", Text(ttft, name));
  return out;
}

struct SweepPoint {
  std::string series;
  Point point;
  bool identity = false;
};

// Those that no other one beats in loss and time, by time.
std::vector<Point> Front(const std::vector<SweepPoint>& points) {
  std::vector<Point> out;
  for (const SweepPoint& p : points) {
    const bool beaten = std::any_of(points.begin(), points.end(), [&](const SweepPoint& q) {
      return q.point.at <= p.point.at && q.point.mean <= p.point.mean &&
             (q.point.at < p.point.at || q.point.mean < p.point.mean);
    });
    if (!beaten) out.push_back(p.point);
  }
  std::stable_sort(out.begin(), out.end(), [](const Point& a, const Point& b) { return a.at < b.at; });
  return out;
}

void AddPareto(const Charts::Key& key, Chart chart, const std::vector<SweepPoint>& points, bool identity,
               Charts& charts) {
  std::vector<SweepPoint> shown;
  std::copy_if(points.begin(), points.end(), std::back_inserter(shown),
               [&](const SweepPoint& p) { return identity || !p.identity; });
  if (shown.empty()) return;
  chart.numeric = true;
  chart.x_label = "time to the first token, as a share of exact's";
  chart.y_label = "nats per token over exact";
  for (const Point& point : Front(shown)) charts.Add(key, chart, "best", point);
  for (const SweepPoint& p : shown) charts.Add(key, chart, p.series, p.point, /*line=*/false);
  charts.Add(key, chart, "exact", {"", 0, 0, 0, 1}, /*line=*/false);
}

// Both charts of each window and length.
void AddSweeps(absl::Span<const Record> records, Charts& charts) {
  std::vector<std::pair<Charts::Key, std::pair<Chart, std::vector<SweepPoint>>>> all;  // as they come
  for (const Record& r : records) {
    if (Text(r, "measure") != "sweep" || !r.contains("ttft_ratio")) continue;
    const std::string window = Text(r, "window"), length = Text(r, "length");
    const Charts::Key key = {absl::StrCat("pareto-", window, "-n", length), AgreedSweep(r)};
    auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.first == key; });
    if (found == all.end()) {
      Chart head;
      head.title = absl::StrCat("Loss against time, ", window, ": ", Text(r, "model"), ", ", length,
                                " tokens; names are split/tail");
      found = all.insert(all.end(), {key, {head, {}}});
    }
    SweepPoint point;
    point.identity = Text(r, "fill") == "identity";
    const std::string share = r["share"] == 0 ? "" : absl::StrCat(" ", Text(r, "share"));
    point.series = RunName(r);
    point.point = PointOf(absl::StrCat(Text(r, "split"), "/", Text(r, "tail")), r);
    if (!share.empty()) absl::StrAppend(&point.point.x, " +", Text(r, "share"));
    point.point.at = r["ttft_ratio"].get<double>();
    found->second.second.push_back(std::move(point));
  }
  for (const auto& [key, sweep] : all) {
    AddPareto(key, sweep.first, sweep.second, false, charts);
    const bool has_identity =
        std::any_of(sweep.second.begin(), sweep.second.end(), [](const SweepPoint& p) { return p.identity; });
    if (has_identity)
      AddPareto({key.name + "-identity", key.agreed}, sweep.first, sweep.second, true, charts);
  }
}

}  // namespace

std::string RunName(const Record& r) {
  if (Text(r, "mode") == "EXACT") return "exact";
  const std::string selection = Text(r, "selection");
  if (selection.empty() || selection == "none") return Text(r, "fill");
  const double share = r.contains("share") && r["share"].is_number() ? r["share"].get<double>() : 0;
  return absl::StrFormat("%s, %s %.3g", Text(r, "fill"), selection, share);
}

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
  AddSweeps(records, charts);
  return charts.Take();
}

}  // namespace ridgefill::eval
