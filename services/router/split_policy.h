// How one prompt is prefilled: a pure function of the request, the operator's limits and what the prefill
// worker holds (docs/architecture.md, "Rules that settle questions").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/ridge/fill_plan.h"

namespace ridgefill::router {

struct PolicyOptions {
  int64_t auto_min_tokens = 2048;  // AUTO runs SPEED from here on
  int64_t local_max_tokens = 256;  // uncached tokens up to which decode prefills by itself
  bool forbid_filled = false;
  int tail = 0;             // 0: the map set's
  float share = 0.25f;      // of the rows before the tail that QUALITY selects at most ...
  float max_share = 0.25f;  // ... and that a request may ask for
  ridge::WireForm wire_form = ridge::WireForm::kKv;  // of filled prompts; a probe always takes `hidden`
  // Of SPEED and AUTO, and of QUALITY, where the request names no split. 0: the worker's default one.
  int speed_split = 0, quality_split = 0;
};

struct PromptFacts {
  ridge::Mode mode = ridge::Mode::kAuto;  // as the request asks
  int64_t tokens = 0;
  int64_t uncached = 0;  // tokens that no cache holds
  bool prompt_logprobs = false;
  std::optional<float> share;  // as the request asks
  ridge::Selector selector = ridge::Selector::kAttention;
  int split = 0;  // as the request asks; 0: it names none
};

// What a worker said about one of its map sets. All zero: of none.
struct MapFacts {
  int split = 0;
  int tail_default = 0, tail_minimum = 0;
  int min_bulk = 0;
  std::string digest;
};
// The one of a split, of 0 the first, which is the default; all zero where there is none.
const MapFacts& OfSplit(const std::vector<MapFacts>& maps, int split);

// What the prefill worker said about itself. Without any worker: all zero.
struct PrefillFacts {
  int layers = 0;         // of the model; 0: there is no prefill worker
  int loaded_layers = 0;  // layers [0, loaded_layers)
  std::vector<MapFacts> maps;
};

// What the prompt wants of a worker, asked before one is chosen.
enum class MapsWanted {
  kNo,
  kPreferred,  // on prefill AUTO that would be filled: without maps it runs EXACT; on decode wire form
               // `hidden`
  kRequired,   // SPEED or QUALITY, a probe: without maps it fails
};
MapsWanted WantsMaps(const PolicyOptions& options, const PromptFacts& prompt);          // of prefill
MapsWanted WantsMapsOnDecode(const PolicyOptions& options, const PromptFacts& prompt);  // of decode
int WantedSplit(const PolicyOptions& options, const PromptFacts& prompt);               // 0: the default one

// FAILED_PRECONDITION (MODE_FORBIDDEN, NO_MAPS), INVALID_ARGUMENT (PROMPT_LOGPROBS_EXACT_ONLY, SHARE_RANGE).
// The decision's reason: REQUESTED, LONG_PROMPT, or why the prompt runs EXACT although more
// was possible: SHORT_PROMPT, NO_MAPS, BELOW_AUTO_MIN, OPERATOR, PROMPT_LOGPROBS; LOCAL where decode
// prefills, NO_PREFILL_WORKERS where it must.
// Where the operator wants wire form `hidden` and the decode worker has no maps, it is `kv`: the bits are the
// same. Where wire form `hidden` is wanted, of an operator or a probe, and the prefill worker has no maps,
// the decode worker's say what there is to decide. A share that leaves no room for a window becomes 0.
absl::StatusOr<ridge::FillDecision> Decide(const PolicyOptions& options, const PromptFacts& prompt,
                                           const PrefillFacts& prefill, const std::vector<MapFacts>& decode);

}  // namespace ridgefill::router
