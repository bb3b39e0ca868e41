// Runs prompts: lower layers for every row in chunks, ridge fill of the late layers' K and V, frames out to a
// KvSink. QUALITY keeps a prompt's h_S until its rows are selected, and fills then. In wire form `hidden` the
// fill is the decode worker's: h_S of every row goes out, and neither maps nor late layers are needed here.
//
// One thread owns all state and runs the step loop; every public method is thread-safe and never waits for a
// step. A step is one chunk of one request. Requests run in order of arrival; one whose sink is full or that
// was cancelled does not hold up the others.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/model/model.h"
#include "engine/ridge/device_maps.h"
#include "engine/runtime/kv_frame.h"
#include "engine/runtime/kv_stream.h"

namespace ridgefill::runtime {

struct PrefillEngineOptions {
  int64_t chunk_tokens = 512;     // rows of one step; a multiple of kernels::kBlockTokens
  int64_t context_tokens = 8192;  // longest prompt
  int64_t cache_blocks = 0;  // blocks of the worker's own cache; 0: enough for two prompts of context_tokens
  int max_queued = 64;       // requests waiting; one more is RESOURCE_EXHAUSTED
  int64_t frame_bytes = 1 << 20;  // frames are closed at this size or at the end of a chunk
};

struct PrefillStats {
  int queued = 0, running = 0;
  int64_t queued_tokens = 0;
  // Running totals. In wire form `hidden` the worker does not know which rows are filled.
  int64_t prompt_tokens = 0, filled_tokens = 0, exact_tokens = 0, hidden_tokens = 0;
  int64_t selected_tokens = 0;  // of the exact ones
  int64_t frames = 0, frame_bytes = 0;
  int64_t requests_ok = 0, requests_failed = 0, requests_cancelled = 0;
  int64_t blocks_total = 0, blocks_free = 0, blocks_used = 0;
  absl::Duration busy;           // time spent in steps
  absl::Duration last_step_age;  // since the step loop last came round
};

class PrefillEngine {
 public:
  // Without maps: EXACT, and wire form `hidden`. Model, maps and clock must outlive the engine.
  static absl::StatusOr<std::unique_ptr<PrefillEngine>> Create(const model::Model& model, ridge::MapSets maps,
                                                               const Hello& hello, const base::Clock& clock,
                                                               const PrefillEngineOptions& options);
  // Stops the loop; unfinished requests end with UNAVAILABLE.
  virtual ~PrefillEngine() = default;

  // Checks the hello and the decision, then queues. On an error the sink is not finished: the caller still
  // owns the answer. FAILED_PRECONDITION (hello, NO_MAPS, split), INVALID_ARGUMENT (empty, over context),
  // RESOURCE_EXHAUSTED (PREFILL_QUEUE_FULL), UNAVAILABLE (DRAINING).
  virtual absl::Status Submit(PrefillCall call, std::unique_ptr<KvSink>& sink) = 0;
  // No new requests; returns once all are done or at the deadline (then false).
  virtual bool Drain(absl::Time deadline) = 0;
  virtual PrefillStats Stats() const = 0;
};

}  // namespace ridgefill::runtime
