#include "engine/scheduler/scheduler.h"

#include <algorithm>

namespace ridgefill::scheduler {

StepPlan Decide(const SchedulerState& state) {
  StepPlan plan;
  int64_t blocks_free = state.blocks_free;
  int admitted = state.admitted;
  for (const QueuedRequest& request : state.queued) {
    if (admitted >= state.max_admitted || request.blocks > blocks_free) break;
    blocks_free -= request.blocks;
    ++admitted;
    plan.admit.push_back(request.id);
  }
  if (!state.prompts.empty()) {
    const PromptRequest& first = state.prompts.front();
    plan.piece = PromptPiece{first.id, std::min(first.rows, state.piece_rows)};
  }
  plan.decode = state.running;
  return plan;
}

}  // namespace ridgefill::scheduler
