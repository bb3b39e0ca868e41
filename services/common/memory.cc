#include "services/common/memory.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/status.h"

namespace ridgefill::common {
namespace {

// Files under /proc and /sys have no size, so they are read as streams.
std::string ReadSmall(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string Mb(int64_t bytes) { return absl::StrCat((bytes + (1 << 20) - 1) >> 20, " MB"); }

int64_t Smaller(int64_t a, int64_t b) {
  if (a < 0 || b < 0) return std::max(a, b);
  return std::min(a, b);
}

}  // namespace

int64_t MemoryNeed::total() const {
  int64_t sum = 0;
  for (const auto& part : parts) sum += part.second;
  return sum;
}

absl::Status CheckFits(const MemoryNeed& need, int64_t available) {
  if (available < 0 || need.total() <= available) return absl::OkStatus();
  std::string terms;
  for (const auto& [name, bytes] : need.parts) {
    absl::StrAppend(&terms, terms.empty() ? "" : " + ", name, " ", Mb(bytes));
  }
  return base::Error(absl::StatusCode::kResourceExhausted, "MODEL_DOES_NOT_FIT",
                     absl::StrCat(need.what, " does not fit: ", terms, " = ", Mb(need.total()), ", but ",
                                  Mb(available), " are available; ", need.advice));
}

int64_t WeightBytes(const model::ModelConfig& config, int layers, bool with_head, int64_t parameter_bytes) {
  const int64_t d = config.hidden;
  const int64_t q = int64_t{config.heads_q} * config.head_dim;
  const int64_t layer = d * q * 2 + d * config.kv_width() * 2 + 3 * d * config.ffn;
  const int64_t embedding = int64_t{config.vocab} * d;
  // A tied head is packed for its product apart from the rows of the embedding.
  return (layer * layers + (with_head ? embedding : 0)) * parameter_bytes + embedding * 4;
}

int64_t AvailableMemory(const std::string& root) {
  const int64_t machine = ParseMemAvailable(ReadSmall(root + "/proc/meminfo"));
  const std::string v2_files = root + "/sys/fs/cgroup/memory.",
                    v1_files = root + "/sys/fs/cgroup/memory/memory.";
  const int64_t v2 = ParseCgroupRoom(ReadSmall(v2_files + "max"), ReadSmall(v2_files + "current"),
                                     ReadSmall(v2_files + "stat"));
  const int64_t v1 = ParseCgroupRoom(ReadSmall(v1_files + "limit_in_bytes"),
                                     ReadSmall(v1_files + "usage_in_bytes"), ReadSmall(v1_files + "stat"));
  return Smaller(machine, Smaller(v2, v1));
}

int64_t ParseMemAvailable(absl::string_view meminfo) {
  for (absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    if (!absl::ConsumePrefix(&line, "MemAvailable:") || !absl::ConsumeSuffix(&line, "kB")) continue;
    int64_t kb = 0;
    if (absl::SimpleAtoi(line, &kb) && kb >= 0) return kb * 1024;
  }
  return -1;
}

int64_t ParseCgroupRoom(absl::string_view limit, absl::string_view usage, absl::string_view stat) {
  int64_t max = 0, used = 0;
  if (!absl::SimpleAtoi(limit, &max) || !absl::SimpleAtoi(usage, &used)) return -1;  // "max", or no such file
  used -= std::min(used, ParsePageCache(stat));
  return std::max<int64_t>(0, max - used);
}

int64_t ParsePageCache(absl::string_view stat) {
  int64_t own = 0, total = 0;
  for (const absl::string_view line : absl::StrSplit(stat, '\n')) {
    const std::pair<absl::string_view, absl::string_view> entry =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    absl::string_view name = entry.first;
    int64_t& sum = absl::ConsumePrefix(&name, "total_") ? total : own;
    int64_t bytes = 0;
    if ((name == "inactive_file" || name == "active_file") && absl::SimpleAtoi(entry.second, &bytes))
      sum += bytes;
  }
  return std::max(own, total);  // v1 lists both; the total includes the own
}

}  // namespace ridgefill::common
