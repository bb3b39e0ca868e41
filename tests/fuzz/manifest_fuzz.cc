// A manifest that is taken says only what it may, and comes back the same from its own text; so does the
// search for the split in it.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/check.h"
#include "engine/ridge/manifest.h"
#include "engine/ridge/sweep.h"

namespace ridgefill::ridge {
namespace {

void CheckSweep(const std::vector<SweptSplit>& sweep) {
  int chosen = 0, last = 0;
  for (const SweptSplit& swept : sweep) {
    RF_CHECK(swept.split > last);
    last = swept.split;
    chosen += swept.chosen ? 1 : 0;
    RF_CHECK(swept.within || !swept.chosen);
    for (const SweepFigure& figure : swept.figures) {
      RF_CHECK(std::isfinite(figure.mean) && figure.low <= figure.high);
      RF_CHECK(figure.count >= 0 && figure.length > 0 && figure.tail > 0);
    }
  }
  RF_CHECK(chosen <= 1);
}

void CheckFiles(const ParsedManifest& parsed) {
  RF_CHECK(!parsed.files.empty());
  for (const auto& [name, digest] : parsed.files) {
    RF_CHECK(!name.empty() && name[0] != '.' && name.find('/') == std::string::npos);
    RF_CHECK(digest.size() == 64);
  }
}

}  // namespace
}  // namespace ridgefill::ridge

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ridgefill;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto sweep = ridge::ParseSweep(bytes); sweep.ok()) ridge::CheckSweep(*sweep);
  const auto parsed = ridge::ParseManifest(bytes);
  if (!parsed.ok()) return 0;
  ridge::CheckFiles(*parsed);
  if (parsed->published) return 0;
  const std::string text = ridge::ManifestText(parsed->manifest, parsed->files);
  const auto again = ridge::ParseManifest(text);
  RF_CHECK(again.ok());
  RF_CHECK(ridge::ManifestText(again->manifest, again->files) == text);
  return 0;
}
