#include "engine/eval/text_records.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/container/flat_hash_set.h"
#include "engine/eval/measure.h"

namespace ridgefill::eval {
namespace {

constexpr int64_t kLastRows = 512;
constexpr double kDistantShare = 0.05;

// Offsets from the tail's first row. The last prompt row already predicts the continuation.
struct Window {
  const char* name;
  int64_t begin, end;
};

std::vector<Window> Windows(const TextSetting& setting, int64_t tail) {
  std::vector<Window> windows = {{"tail", 0, tail - 1}};
  if (tail > kLastRows) windows.push_back({"last_512", tail - kLastRows, tail - 1});
  windows.push_back({"continuation", tail - 1, tail - 1 + setting.continuation});
  return windows;
}

double Mean(const std::vector<double>& x, int64_t begin, int64_t end) {
  return std::accumulate(x.begin() + begin, x.begin() + end, 0.0) / static_cast<double>(end - begin);
}

double Mean(const std::vector<double>& x) { return Mean(x, 0, static_cast<int64_t>(x.size())); }

// f of each document.
template <typename F>
std::vector<double> ByDocument(const TextRuns& runs, F f) {
  std::vector<double> out;
  out.reserve(runs.size());
  for (const TextRun& run : runs) out.push_back(f(run));
  return out;
}

std::vector<double> Deltas(const TextRuns& runs, int64_t begin, int64_t end) {
  return ByDocument(
      runs, [&](const TextRun& run) { return Mean(run.filled, begin, end) - Mean(run.exact, begin, end); });
}

// What all text records begin with.
Record Base(const char* measure, const TextSetting& setting, const Variant& variant, int64_t tail,
            const TextRuns& runs) {
  Record out = Record::object();
  out["measure"] = measure;
  out.update(ToRecord(variant));
  out["tail"] = tail;
  out["outliers"] =
      Rounded(Mean(ByDocument(runs, [](const TextRun& run) { return static_cast<double>(run.outliers); })));
  out["length"] = setting.tokens;
  out["prompt_tokens"] = setting.tokens - setting.continuation;
  out["filled_share"] = Rounded(Mean(ByDocument(runs, [&](const TextRun& run) {
    return static_cast<double>(run.filled_rows) / static_cast<double>(setting.tokens - setting.continuation);
  })));
  out["seed"] = setting.seed;
  out["documents_digest"] = DocumentsDigest(setting.documents);
  return out;
}

// Rows [0, 64), [64, 128), [128, 256), ... of the scored ones: where after the bulk the loss lies.
Record ByDistance(const TextRuns& runs) {
  Record out = Record::array();
  const int64_t rows = static_cast<int64_t>(runs.front().exact.size());
  for (int64_t begin = 0, end = 64; begin < rows; begin = end, end *= 2) {
    Record bucket = {{"from", begin}, {"to", std::min(end, rows)}};
    bucket.update(Figures(Deltas(runs, begin, std::min(end, rows))));
    out.push_back(std::move(bucket));
  }
  return out;
}

// Rows of the window whose loss rises most when the bulk is cut; ties to the earlier row.
std::vector<int64_t> DistantRows(const TextRun& run, const Window& window) {
  std::vector<int64_t> rows(window.end - window.begin);
  std::iota(rows.begin(), rows.end(), window.begin);
  const auto rise = [&](int64_t row) { return run.cut[row] - run.exact[row]; };
  std::stable_sort(rows.begin(), rows.end(), [&](int64_t a, int64_t b) { return rise(a) > rise(b); });
  rows.resize(std::max<int64_t>(1, std::llround(kDistantShare * static_cast<double>(rows.size()))));
  return rows;
}

// Mean over some rows of what a run's tokens cost more than in the exact one.
double DeltaAt(const TextRun& run, const std::vector<int64_t>& rows,
               std::vector<double> TextRun::*of = &TextRun::filled) {
  double sum = 0;
  for (int64_t row : rows) sum += (run.*of)[row] - run.exact[row];
  return sum / static_cast<double>(rows.size());
}

// Scored rows whose following token does, or does not, occur before.
std::vector<int64_t> RowsBefore(const std::vector<int32_t>& document, int64_t first_row, bool novel) {
  absl::flat_hash_set<int32_t> seen(document.begin(), document.begin() + first_row + 1);
  std::vector<int64_t> rows;
  for (int64_t row = first_row; row + 1 < static_cast<int64_t>(document.size()); ++row) {
    if (seen.insert(document[row + 1]).second == novel) rows.push_back(row - first_row);
  }
  return rows;
}

}  // namespace

TextRuns ReadRuns(absl::Span<const Record> values, size_t tail, size_t variant, int64_t skip) {
  TextRuns out;
  for (const Record& document : values) {
    const Record& of_tail = document["tails"][tail];
    const Record& run = of_tail["runs"][variant];
    TextRun read;
    const auto exact = document["exact"].get<std::vector<double>>();
    read.exact.assign(exact.begin() + skip, exact.end());
    read.cut = of_tail["cut"].get<std::vector<double>>();
    read.filled = run["nll"].get<std::vector<double>>();
    read.kl = run["kl"].get<std::vector<double>>();
    read.top1 = run["top1"].get<std::vector<double>>();
    read.outliers = run["outliers"].get<int64_t>();
    read.filled_rows = run["filled"].get<int64_t>();
    out.push_back(std::move(read));
  }
  return out;
}

std::vector<Record> NllRecords(const TextSetting& setting, const Variant& variant, int64_t tail,
                               const TextRuns& runs) {
  std::vector<Record> out;
  for (const Window& window : Windows(setting, tail)) {
    const auto mean = [&](std::vector<double> TextRun::*of) {
      return ByDocument(runs, [&](const TextRun& run) { return Mean(run.*of, window.begin, window.end); });
    };
    Record record = Base("nll", setting, variant, tail, runs);
    record["window"] = window.name;
    record["window_tokens"] = window.end - window.begin;
    AddFigures(record, "dnll", Deltas(runs, window.begin, window.end));
    record["exact_nll"] = Rounded(Mean(mean(&TextRun::exact)));
    record["kl"] = Figures(mean(&TextRun::kl));
    record["top1"] = Figures(mean(&TextRun::top1));
    if (window.begin == 0) record["by_distance"] = ByDistance(runs);
    out.push_back(std::move(record));
  }
  return out;
}

std::vector<Record> DistantRecords(const TextSetting& setting, const Variant& variant, int64_t tail,
                                   const TextRuns& runs) {
  std::vector<Record> out;
  for (const Window& window : Windows(setting, tail)) {
    Record record = Base("distant", setting, variant, tail, runs);
    record["window"] = window.name;
    record["window_tokens"] = DistantRows(runs.front(), window).size();
    AddFigures(record, "dnll",
               ByDocument(runs, [&](const TextRun& run) { return DeltaAt(run, DistantRows(run, window)); }));
    // What losing the bulk altogether costs on the same tokens.
    record["cut_dnll"] = Rounded(Mean(ByDocument(
        runs, [&](const TextRun& run) { return DeltaAt(run, DistantRows(run, window), &TextRun::cut); })));
    out.push_back(std::move(record));
  }
  return out;
}

std::vector<Record> NovelRecords(const TextSetting& setting, const Variant& variant, int64_t tail,
                                 const TextRuns& runs) {
  std::vector<Record> out;
  const int64_t first_row = setting.tokens - setting.continuation - tail;
  for (const bool novel : {true, false}) {
    std::vector<double> deltas;
    size_t tokens = 0;
    for (size_t i = 0; i < runs.size(); ++i) {
      const std::vector<int64_t> rows = RowsBefore(setting.documents[i], first_row, novel);
      tokens += rows.size();
      if (!rows.empty()) deltas.push_back(DeltaAt(runs[i], rows));
    }
    if (deltas.empty()) continue;
    Record record = Base("novel", setting, variant, tail, runs);
    record["window"] = novel ? "novel" : "seen";
    record["window_tokens"] = Rounded(static_cast<double>(tokens) / static_cast<double>(runs.size()));
    AddFigures(record, "perplexity_ratio", deltas);
    for (const char* key : {"mean", "low", "high"})
      record[key] = Rounded(std::exp(record[key].get<double>()));
    out.push_back(std::move(record));
  }
  return out;
}

}  // namespace ridgefill::eval
