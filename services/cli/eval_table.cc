#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/eval/plot.h"
#include "services/cli/eval_output.h"

namespace ridgefill::cli {
namespace {

using eval::Record;

std::string Text(const Record& record, const char* key) {
  if (!record.contains(key)) return "";
  const Record& value = record[key];
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// "+0.0207 [+0.0100, +0.0320]"; shares and ratios without a sign.
std::string Interval(const Record& figures, bool sign) {
  const double mean = figures["mean"].get<double>(), low = figures["low"].get<double>(),
               high = figures["high"].get<double>();
  return sign ? absl::StrFormat("%+.4f [%+.4f, %+.4f]", mean, low, high)
              : absl::StrFormat("%.3f [%.3f, %.3f]", mean, low, high);
}

// What tells a record from its neighbours.
std::string Cell(const Record& r) {
  const std::string measure = Text(r, "measure");
  if (measure == "needle") return absl::StrCat(Text(r, "task"), " in ", Text(r, "evidence"));
  if (measure == "splice")
    return absl::StrCat(Text(r, "window"), " ", Text(r, "layers"), " ", Text(r, "half"));
  if (measure == "sweep" && r["share"] != 0)
    return absl::StrCat(Text(r, "window"), ", ", Text(r, "selection"), " ", Text(r, "share"));
  return Text(r, "window");
}

std::string Details(const Record& r) {
  const std::string measure = Text(r, "measure");
  if (r.contains("layers_by_kl")) {
    std::string out =
        absl::StrFormat("K has %.0f %% of the KL; layers by KL:", 100 * r["k_share"].get<double>());
    for (const Record& layer : r["layers_by_kl"]) absl::StrAppend(&out, " ", layer["layer"].dump());
    return out;
  }
  if (measure == "splice") return absl::StrCat("KL ", Interval(r["kl"], false));
  if (measure == "nll" || measure == "sweep") {
    std::string out = absl::StrCat("KL ", Interval(r["kl"], false), ", top-1 ", Interval(r["top1"], false));
    if (!r.contains("ttft_ratio")) return out;
    return absl::StrCat(out, absl::StrFormat(", TTFT %.3f of exact's %.0f ms", r["ttft_ratio"].get<double>(),
                                             r["ttft"]["exact_ms"].get<double>()));
  }
  if (measure == "distant") return absl::StrFormat("without the bulk %+.3f", r["cut_dnll"].get<double>());
  if (measure == "needle") {
    std::string out = absl::StrFormat("answer NLL %.3f, recall %.3f", r["answer_nll"].get<double>(),
                                      r["recall"].get<double>());
    if (!r.contains("on_solved")) return out;
    const Record& solved = r["on_solved"];
    return absl::StrCat(out, "; of ", Text(solved, "items"), " that exact solves ", Interval(solved, false),
                        absl::StrFormat(", p %.2g", r["against_exact"]["mcnemar_p"].get<double>()));
  }
  return "";
}

}  // namespace

EvalProgress::EvalProgress() : terminal_(isatty(STDERR_FILENO) != 0) {}

absl::Status EvalProgress::operator()(const eval::Progress& progress) {
  if (progress.measure != measure_) {
    measure_ = progress.measure;
    computed_ = 0;
    began_ = absl::Now();
  }
  if (!progress.resumed) ++computed_;
  const bool last = progress.done == progress.items;
  if (!last && absl::Now() - last_ < (terminal_ ? absl::Milliseconds(200) : absl::Seconds(60))) {
    return absl::OkStatus();
  }
  last_ = absl::Now();
  const double seconds = absl::ToDoubleSeconds(last_ - began_);
  std::string rest;
  if (!last && computed_ > 0) {
    rest = absl::StrFormat(", %.0f s to go",
                           seconds / static_cast<double>(computed_) * (progress.items - progress.done));
  }
  std::fprintf(stderr, "%s%-24s %lld/%lld, %.0f s%s%s", terminal_ ? "\r\033[K" : "", measure_.c_str(),
               static_cast<long long>(progress.done), static_cast<long long>(progress.items), seconds,
               rest.c_str(), last || !terminal_ ? "\n" : "");
  std::fflush(stderr);
  return absl::OkStatus();
}

void EvalTable::Add(const Record& record) {
  if (Text(record, "measure") != measure_) {
    measure_ = Text(record, "measure");
    std::fprintf(stderr, "\n%-8s %-22s %5s %6s %5s  %-24s %4s  %-29s\n", measure_.c_str(), "run", "split",
                 "length", "tail", "", "n", Text(record, "figure").c_str());
  }
  const std::string figure = Text(record, "figure");
  std::fprintf(stderr, "%-8s %-22s %5s %6s %5s  %-24s %4s  %-29s %s\n", Text(record, "mode").c_str(),
               eval::RunName(record).c_str(), Text(record, "split").c_str(), Text(record, "length").c_str(),
               Text(record, "tail").c_str(), Cell(record).c_str(),
               Text(record, record.contains("items") ? "items" : "documents").c_str(),
               Interval(record, figure == "dnll").c_str(), Details(record).c_str());
}

}  // namespace ridgefill::cli
