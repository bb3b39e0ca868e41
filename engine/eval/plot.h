// Records of an evaluation as SVG charts, drawn here without any library: loss by distance from the bulk,
// needle accuracy by length and by depth, spliced loss by layer, loss against time. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/eval/json_log.h"

namespace ridgefill::eval {

struct Point {
  std::string x;                       // a category: points of one chart stand side by side in order
  double mean = 0, low = 0, high = 0;  // a whisker from low to high
  double at = 0;                       // numeric charts: the place on the x axis; `x` is the point's name
};

struct Series {
  std::string name;
  std::vector<Point> points;
  bool line = true;  // joined; in numeric charts with the points' names beside them
};

struct Chart {
  std::string title, x_label, y_label;
  std::vector<Series> series;  // categories are those of all series, in the order in which they come
  std::string note = "";       // what else was the same for all, under the title
  bool numeric = false;        // the x axis is one of numbers
};

std::string ToSvg(const Chart& chart);

// What a record's run is called: "exact", its fill, or fill, selector and share: "ridge, attention 0.05".
std::string RunName(const Record& record);

// Whole lines of a file of records. DATA_LOSS (EVAL_FILE_DAMAGED) names one that is no JSON object, or a
// field that a chart needs and that is not there or of another type.
absl::StatusOr<std::vector<Record>> ParseRecords(absl::string_view lines);

// File name without ending, and chart: those for which there are records. Records of one chart agree in
// model, maps, split, tail, length and documents (needles by length: in all but tail and length, which are
// the categories); series are fills, selections and their shares. Of several records of one point the last
// counts. Charts that differ only in what their names do not say are numbered: "-2", "-3". Of a
// sweep with times one chart for each window and length: points are splits and tails, series shares and
// fills, and those that no other beats in both loss and time are joined; once without the identity fill,
// whose loss dwarfs the rest, and once with it.
std::vector<std::pair<std::string, Chart>> ChartsOf(absl::Span<const Record> records);

}  // namespace ridgefill::eval
