// Who runs in the next step of a decode engine. Pure: no clock, no device, no memory of earlier steps.
//
// Queued requests get blocks strictly in order of arrival: the first that does not fit holds up those behind
// it, so that a long prompt is never starved by short ones. Prompts are finished one at a time in order of
// arrival, in pieces; every running request decodes one token in every step, beside at most one piece.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ridgefill::scheduler {

using RequestId = uint64_t;

// Waits for blocks. `blocks` is what it gets at admission; today that lasts for the whole answer, so a
// running request never runs out.
struct QueuedRequest {
  RequestId id = 0;
  int64_t blocks = 0;
};

// Its cache is complete below its next exact row: `rows` of them have still to pass the late layers.
struct PromptRequest {
  RequestId id = 0;
  int64_t rows = 0;
};

struct SchedulerState {
  std::vector<QueuedRequest> queued;   // in order of arrival
  std::vector<PromptRequest> prompts;  // in order of arrival
  std::vector<RequestId> running;
  int admitted = 0;  // requests that hold blocks, whatever they do
  int64_t blocks_free = 0;
  // Limits of the engine.
  int max_admitted = 0;
  int64_t piece_rows = 0;
};

struct PromptPiece {
  RequestId id = 0;
  int64_t rows = 0;
};

struct StepPlan {
  std::vector<RequestId> admit;  // reserve their blocks and start their transfers, in this order
  std::optional<PromptPiece> piece;
  std::vector<RequestId> decode;
};

StepPlan Decide(const SchedulerState& state);

}  // namespace ridgefill::scheduler
