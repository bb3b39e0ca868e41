#include "engine/eval/measure.h"

#include <cmath>
#include <utility>

#include "engine/base/sha256.h"
#include "engine/base/status.h"

namespace ridgefill::eval {
namespace {

constexpr size_t kShortDigest = 12;

std::string Key(absl::string_view text) { return base::Sha256Hex(text).substr(0, 2 * kShortDigest); }

// All that an item's values depend on, beside the item.
std::string ConfigOf(const Measure& measure, const RunOptions& options) {
  return ToRecord(options.header).dump() + measure.Config().dump();
}

// The measure's name first, then what ran, then the figures.
Record WithHeader(const Header& header, const Record& record) {
  Record out = Record::object();
  out["measure"] = record["measure"];
  out.update(ToRecord(header));
  out.update(record);
  const auto set = header.sets.find(out["split"].get<int>());
  if (set != header.sets.end()) out["maps"] = ShortDigest(set->second);
  return out;
}

// Under a key of its content: a record that is there already stays alone.
absl::Status Write(const Record& record, const RunOptions& options) {
  const std::string key = Key(record.dump());
  if (options.records != nullptr && options.records->Find(key) == nullptr) {
    RF_RETURN_IF_ERROR(options.records->Append(key, record));
  }
  return options.emit ? options.emit(record) : absl::OkStatus();
}

}  // namespace

Record ToRecord(const Header& header) {
  return {{"model", header.model},
          {"weights", ShortDigest(header.weights)},
          {"maps", ShortDigest(header.maps)},
          {"split", header.split},
          {"backend", header.backend},
          {"isa", header.isa},
          {"commit", header.commit}};
}

std::vector<int64_t> MissingItems(const Measure& measure, const RunOptions& options) {
  const std::string config = ConfigOf(measure, options);
  std::vector<int64_t> out;
  for (int64_t item = 0; item < measure.items(); ++item) {
    const bool found =
        options.items != nullptr && options.items->Find(Key(config + measure.Digest(item))) != nullptr;
    if (!found) out.push_back(item);
  }
  return out;
}

absl::Status RunMeasure(const Measure& measure, Subject& subject, const RunOptions& options) {
  const std::string config = ConfigOf(measure, options);
  std::vector<Record> values;
  for (int64_t item = 0; item < measure.items(); ++item) {
    const std::string key = Key(config + measure.Digest(item));
    const Record* found = options.items == nullptr ? nullptr : options.items->Find(key);
    const bool resumed = found != nullptr;
    if (resumed) {
      values.push_back((*found)["values"]);
    } else {
      RF_ASSIGN_OR_RETURN(Record made, measure.Values(subject, item));
      if (options.items != nullptr) {
        Record line = Record::object();
        line["values"] = made;
        RF_RETURN_IF_ERROR(options.items->Append(key, line));
      }
      values.push_back(std::move(made));
    }
    if (options.progress) {
      RF_RETURN_IF_ERROR(options.progress({measure.name(), item + 1, measure.items(), resumed}));
    }
  }
  for (const Record& record : measure.Records(values)) {
    RF_RETURN_IF_ERROR(Write(WithHeader(options.header, record), options));
  }
  return absl::OkStatus();
}

double Rounded(double x) { return std::round(x * 1e6) / 1e6; }

Record Rounded(absl::Span<const double> x) {
  Record out = Record::array();
  for (double value : x) out.push_back(Rounded(value));
  return out;
}

Record Figures(absl::Span<const double> by_document) {
  const Interval interval = Bootstrap(by_document);
  return {{"mean", Rounded(interval.mean)}, {"low", Rounded(interval.low)}, {"high", Rounded(interval.high)}};
}

void AddFigures(Record& out, absl::string_view figure, const std::vector<double>& by_document) {
  out["documents"] = by_document.size();
  out["figure"] = std::string(figure);
  out.update(Figures(by_document));
  out["values"] = Rounded(by_document);
}

Record ToRecord(const Variant& variant) {
  Record out = {{"mode", std::string(ridge::Name(variant.mode()))},
                {"fill", std::string(Name(variant.fill))},
                {"selection", std::string(ridge::Name(variant.selector))},
                {"share", Rounded(variant.share)}};
  if (variant.split != 0) out["split"] = variant.split;
  return out;
}

std::string ShortDigest(const std::string& digest) { return digest.substr(0, kShortDigest); }

std::string TokensDigest(absl::Span<const int32_t> ids) {
  return ShortDigest(
      base::Sha256Hex({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)}));
}

std::string DocumentsDigest(absl::Span<const std::vector<int32_t>> documents) {
  base::Sha256 digest;
  for (const std::vector<int32_t>& document : documents) digest.Update(TokensDigest(document));
  return ShortDigest(digest.HexDigest());
}

}  // namespace ridgefill::eval
