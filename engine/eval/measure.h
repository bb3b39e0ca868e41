// One measure over a list of items (documents, needles), made so that a run that was killed goes on where it
// was: an item's values are a pure function of the run's header, the measure's configuration and the item,
// and records are a pure function of all items' values.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/eval/bootstrap.h"
#include "engine/eval/json_log.h"
#include "engine/eval/subject.h"

namespace ridgefill::eval {

// In every record: what ran. Digests are cut to 12 digits.
struct Header {
  std::string model, weights, maps, backend, isa, commit;
  int split = 0;
  // Of several map sets the digests by split, for records that name their split; `maps` is then of them all.
  std::map<int, std::string> sets = {};
};
Record ToRecord(const Header& header);

class Measure {
 public:
  virtual ~Measure() = default;
  virtual std::string name() const = 0;  // for progress: "text 4096", "needle single 2048"
  virtual Record Config() const = 0;     // all that decides an item's values, beside header and item
  virtual int64_t items() const = 0;
  virtual int64_t tokens(int64_t item) const = 0;
  // About how much an item is to compute, in rows of an exact prompt of its length: for an estimate of time.
  virtual double Work(const Subject& subject, int64_t item) const = 0;
  virtual std::string Digest(int64_t item) const = 0;
  virtual absl::StatusOr<Record> Values(Subject& subject, int64_t item) const = 0;
  // Each starts with "measure"; the runner puts the header after it.
  virtual std::vector<Record> Records(absl::Span<const Record> values) const = 0;
};

struct Progress {
  std::string measure;
  int64_t done = 0, items = 0;
  bool resumed = false;  // the last item's values were there already
};

struct RunOptions {
  Header header;
  JsonLog* items = nullptr;                               // values of finished items
  JsonLog* records = nullptr;                             // finished records
  std::function<absl::Status(const Progress&)> progress;  // after each item; an error ends the run
  std::function<absl::Status(const Record&)> emit;        // each record, found or new
};
// Items of which `options.items` has no values yet.
std::vector<int64_t> MissingItems(const Measure& measure, const RunOptions& options);
absl::Status RunMeasure(const Measure& measure, Subject& subject, const RunOptions& options);

// Work beside the exact run, in rows of an exact prompt: of the fill for a prompt row, of a late pass for an
// exact row, and of scoring a row with the head (of comparing two runs' rows: twice).
inline constexpr double kFillWork = 0.05, kLateWork = 0.4, kHeadWork = 0.4;

// Six decimals: what files keep, so that a run that went on gives the figures of one that was not stopped.
double Rounded(double x);
Record Rounded(absl::Span<const double> x);
// {"mean": .., "low": .., "high": ..} of one value a document.
Record Figures(absl::Span<const double> by_document);
// "documents", "figure" (its name), its Figures and "values" into a record.
void AddFigures(Record& out, absl::string_view figure, const std::vector<double>& by_document);
// {"mode", "fill", "selection", "share"}, and "split" where the variant names one.
Record ToRecord(const Variant& variant);
// As records have them: the first 12 digits.
std::string ShortDigest(const std::string& digest);
// sha256 over token ids, 12 digits.
std::string TokensDigest(absl::Span<const int32_t> ids);
// The same over documents in order.
std::string DocumentsDigest(absl::Span<const std::vector<int32_t>> documents);

}  // namespace ridgefill::eval
