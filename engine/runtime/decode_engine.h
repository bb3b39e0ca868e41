// Finishes prompts and generates: pulls KV from prefill workers, in wire form `hidden` fills the bulk rows,
// runs the exact rows through the late layers, then decodes all running requests together, one token each a
// step (continuous batching).
//
// One thread owns all state and runs the step loop; every public method is thread-safe and never waits for a
// step. A step = frames that arrived, at most one piece of a fill, a probe or a late pass, one token of every
// running request.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/model/model.h"
#include "engine/ridge/device_maps.h"
#include "engine/runtime/kv_frame.h"
#include "engine/runtime/kv_stream.h"
#include "engine/sampling/sampler.h"

namespace ridgefill::runtime {

struct DecodeEngineOptions {
  int64_t context_tokens = 8192;  // prompt + generated
  int64_t cache_blocks = 0;       // KV blocks in all
  int max_running = 32;           // requests decoded together
  int max_queued = 256;           // requests waiting for blocks; one more is RESOURCE_EXHAUSTED
  absl::Duration queue_timeout =
      absl::Seconds(60);  // a request that got no blocks by then is RESOURCE_EXHAUSTED
  // Rows of one late-pass (or local prefill) piece, and a quarter of one of a fill: bounds what a long prompt
  // adds to others' inter-token latency.
  int64_t piece_tokens = 256;
  std::vector<int32_t> eos_ids;  // the model's end ids (Tokenizer::stop_ids)
};

struct DecodeCall {
  std::string request_id;
  std::vector<int32_t> tokens;
  ridge::FillDecision decision;
  std::string prefill_address;  // for KvSourceDirectory; unused when decision.local
  sampling::SamplingParams sampling;
  int64_t max_tokens = 256;
  bool prompt_logprobs = false;  // EXACT only
  absl::Time deadline = absl::InfiniteFuture();
  std::string trace_parent;
};

// Sent when the first token is ready, before it.
struct FillReport {
  ridge::Mode mode = ridge::Mode::kExact;
  int split = 0, tail = 0;
  int64_t prompt_tokens = 0, filled = 0, exact = 0, outliers = 0, selected = 0, cached = 0;
  ridge::WireForm wire_form = ridge::WireForm::kKv;
  bool batch_invariant = true;
  std::string reason;
};

// Parts of the time to first token that the workers own (docs/architecture.md, "Metrics"). They add up to the
// time from Submit to the first token exactly; first_token_times.h says what each holds.
struct FirstTokenTimes {
  absl::Duration decode_queue, prefill_queue, prefill_compute, transfer_exposed, late_pass, first_step;
};

struct StartedEvent {
  FillReport report;
  FirstTokenTimes times;
  std::vector<float> prompt_logprobs;  // of tokens 1..N-1, when asked for
};
struct TokenEvent {
  sampling::SampleResult sample;
};
enum class FinishReason : uint8_t { kStop, kLength };  // a stop id or eos; max_tokens or context reached
struct FinishedEvent {
  absl::Status status;  // not OK: the request failed and `reason` means nothing
  FinishReason reason = FinishReason::kStop;
  int64_t generated = 0;
};
using DecodeEvent = std::variant<StartedEvent, TokenEvent, FinishedEvent>;

// Receives one request's events in order, on the engine's thread: must not block and must not call the
// engine. FinishedEvent is the last one and always comes, also after Cancel (status CANCELLED).
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void OnEvent(DecodeEvent event) = 0;
};

struct DecodeStats {
  int queued = 0, receiving = 0, finishing = 0, running = 0;  // filling and probing count as finishing
  int64_t blocks_total = 0, blocks_free = 0, blocks_used = 0, blocks_cached = 0;
  int64_t generated_tokens = 0, prompt_tokens = 0, filled_tokens = 0, exact_tokens = 0, late_pass_rows = 0;
  // Wire form `hidden`: rows filled here, rows that probes ran, transfers. And the transfers in wire form
  // `kv`.
  int64_t fill_rows = 0, probe_rows = 0, transfers_hidden = 0, transfers_kv = 0;
  int64_t steps = 0, decode_rows = 0;  // steps that decoded, and their rows: mean batch = decode_rows / steps
  int64_t transfer_frames = 0, transfer_bytes = 0;
  int64_t requests_ok = 0, requests_failed = 0, requests_cancelled = 0, requests_rejected = 0;
  absl::Duration last_step_age;
};

class DecodeEngine {
 public:
  // The model must hold all layers and the head. Without maps wire form `hidden` is refused.
  // `sources` may be null: local prefill only. Model, maps, sources and clock must outlive the engine.
  // INVALID_ARGUMENT with the arithmetic when one request of
  // context_tokens would not fit into cache_blocks. Destroying the engine ends unfinished requests with
  // UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<DecodeEngine>> Create(const model::Model& model, ridge::MapSets maps,
                                                              const Hello& hello, KvSourceDirectory* sources,
                                                              const base::Clock& clock,
                                                              const DecodeEngineOptions& options);
  virtual ~DecodeEngine() = default;

  // Queues the request; returns a handle for Cancel. RESOURCE_EXHAUSTED (DECODE_QUEUE_FULL), INVALID_ARGUMENT
  // (over context), UNAVAILABLE (DRAINING), FAILED_PRECONDITION (NO_MAPS, MAPS_OTHER_SPLIT). After an error
  // the sink gets no event.
  virtual absl::StatusOr<uint64_t> Submit(DecodeCall call, std::unique_ptr<TokenSink> sink) = 0;
  // Takes effect at the next step: blocks are free and the sink has its FinishedEvent by then. Unknown
  // handles are ignored.
  virtual void Cancel(uint64_t handle) = 0;
  virtual bool Drain(absl::Time deadline) = 0;
  virtual DecodeStats Stats() const = 0;
};

}  // namespace ridgefill::runtime
