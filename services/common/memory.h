// Does it fit? The arithmetic that a worker does before it loads a model.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/model/config.h"

namespace ridgefill::common {

// What a worker is about to allocate, in bytes, each with a name for the message.
struct MemoryNeed {
  std::vector<std::pair<std::string, int64_t>> parts;
  std::string what = "the model";
  std::string advice = "lower kv_memory_mb or context_tokens, or take a smaller model";
  int64_t total() const;
};

// RESOURCE_EXHAUSTED (MODEL_DOES_NOT_FIT) with every term: "weights 271 MB + KV cache 1024 MB ... = ... MB,
// but ... MB are available; lower kv_memory_mb ...". `available` < 0: unknown, then anything goes.
absl::Status CheckFits(const MemoryNeed& need, int64_t available);

// Bytes of the packed weights of layers [0, layers) and, where asked for, the head: `parameter_bytes` for
// each parameter of a matrix product; the embedding's rows stay f32.
int64_t WeightBytes(const model::ModelConfig& config, int layers, bool with_head, int64_t parameter_bytes);

// Bytes that this process may still take: MemAvailable, and what its cgroup (v2 or v1) leaves, where files
// that were read count as free, as they do in MemAvailable. -1: unknown. `root` holds /proc and /sys.
int64_t AvailableMemory(const std::string& root = "");
// The parts of it, on text: "MemAvailable:   123 kB" lines; a limit file ("max" or a number), a usage file
// and memory.stat ("inactive_file 123" lines).
int64_t ParseMemAvailable(absl::string_view meminfo);
int64_t ParseCgroupRoom(absl::string_view limit, absl::string_view usage, absl::string_view stat);
int64_t ParsePageCache(absl::string_view stat);

}  // namespace ridgefill::common
