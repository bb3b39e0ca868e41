#include "engine/eval/split_choice.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"

namespace ridgefill::eval {
namespace {

using ridge::SweepFigure;
using ridge::SweptSplit;

bool IsLoss(const SweepFigure& figure) { return figure.measure == "nll" && figure.cell == "continuation"; }
bool IsNeedle(const SweepFigure& figure) { return figure.measure == "needle"; }

// `interval` has mean, low and high.
SweepFigure FigureOf(const Record& r, const char* measure, const char* cell, const Record& interval,
                     int64_t count) {
  SweepFigure out;
  out.measure = measure;
  out.cell = r[cell].get<std::string>();
  out.length = r["length"].get<int>();
  out.tail = r["tail"].get<int>();
  out.count = count;
  out.mean = interval["mean"].get<double>();
  out.low = interval["low"].get<double>();
  out.high = interval["high"].get<double>();
  return out;
}

// The bounds that this split would be within, where they differ from those given.
std::string BoundsFor(const SweptSplit& swept, const SplitBounds& bounds) {
  double loss = bounds.max_loss, needle = bounds.min_needle;
  for (const SweepFigure& figure : swept.figures) {
    if (IsLoss(figure)) loss = std::max(loss, std::ceil(figure.high * 1e4) / 1e4);
    if (IsNeedle(figure)) needle = std::min(needle, std::floor(figure.mean * 100) / 100);
  }
  std::vector<std::string> needed;
  if (loss > bounds.max_loss) needed.push_back(absl::StrFormat("max_loss %.4f", loss));
  if (needle < bounds.min_needle) needed.push_back(absl::StrFormat("min_needle %.2f", needle));
  return absl::StrJoin(needed, " and ");
}

}  // namespace

std::vector<SweptSplit> SweptSplits(absl::Span<const Record> records) {
  std::map<int, SweptSplit> by_split;
  for (const Record& r : records) {
    if (r["fill"] != "ridge" || r["mode"] != "SPEED") continue;
    const int split = r["split"].get<int>();
    SweptSplit& swept = by_split[split];
    swept.split = split;
    if (r["measure"] == "sweep") {
      swept.figures.push_back(FigureOf(r, "nll", "window", r, r["documents"].get<int64_t>()));
    } else if (r["measure"] == "needle") {
      const Record& solved = r["on_solved"];
      swept.figures.push_back(FigureOf(r, "needle", "task", solved, solved["items"].get<int64_t>()));
    }
  }
  std::vector<SweptSplit> out;
  out.reserve(by_split.size());
  for (auto& [split, swept] : by_split) out.push_back(std::move(swept));
  return out;
}

std::string OutOfBounds(const SweptSplit& swept, const SplitBounds& bounds) {
  std::vector<std::string> reasons;
  for (const SweepFigure& f : swept.figures) {
    if (IsLoss(f) && !(f.high <= bounds.max_loss)) {
      reasons.push_back(absl::StrFormat("continuation %+.4f [%+.4f, %+.4f] over max_loss %.4g", f.mean, f.low,
                                        f.high, bounds.max_loss));
    }
    if (!IsNeedle(f) || bounds.min_needle <= 0) continue;
    if (f.count == 0) {
      reasons.push_back(absl::StrFormat("%s: exact itself solves no item", f.cell));
    } else if (!(f.mean >= bounds.min_needle)) {
      reasons.push_back(absl::StrFormat("%s %.2f of the %d that exact solves, under min_needle %.4g", f.cell,
                                        f.mean, f.count, bounds.min_needle));
    }
  }
  return absl::StrJoin(reasons, ", ");
}

absl::Status ChooseSplit(const SplitBounds& bounds, std::vector<SweptSplit>& candidates) {
  bool chosen = false;
  std::string why;
  for (SweptSplit& swept : candidates) {
    const std::string out = OutOfBounds(swept, bounds);
    swept.within = out.empty();
    swept.chosen = swept.within && !chosen;
    chosen = chosen || swept.chosen;
    if (!out.empty()) absl::StrAppend(&why, why.empty() ? "" : "; ", "split ", swept.split, ": ", out);
  }
  if (chosen) return absl::OkStatus();
  std::string hint = "no candidate was measured";
  if (!candidates.empty()) {
    hint = absl::StrCat("split ", candidates.back().split, " would do with ",
                        BoundsFor(candidates.back(), bounds), "; or try higher splits");
  }
  return base::Error(absl::StatusCode::kFailedPrecondition, "FIT_NO_SPLIT",
                     absl::StrCat("no split stays within the bounds. ", why, why.empty() ? "" : ". ", hint));
}

}  // namespace ridgefill::eval
