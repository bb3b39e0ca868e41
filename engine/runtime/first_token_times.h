// Splits the time to the first token into its parts. Pure.
#pragma once

#include "absl/time/time.h"
#include "engine/runtime/decode_engine.h"

namespace ridgefill::runtime {

// When a request passed each station: base::Clock::Monotonic() of the decode worker, ascending.
struct RequestTimes {
  absl::Duration submitted;    // Submit
  absl::Duration admitted;     // blocks reserved, transfer opened
  absl::Duration received;     // transfer sealed; local: its first piece began
  absl::Duration finished;     // the last piece of its late pass (local: of its prefill) was through
  absl::Duration first_token;  // the first token went to the sink
};

// What the prefill worker says of itself (PlanBody), on its own clock.
struct PeerTimes {
  absl::Duration queue, compute;
};

// Every interval between two stations is given out whole, so the parts add up exactly:
//   decode_queue      submitted .. admitted
//   prefill_queue, prefill_compute, transfer_exposed
//                     admitted .. received: first the peer's queue, then its compute, each cut to what is
//                     left (and to >= 0: it is another clock, or a lie); what neither explains is transfer
//   late_pass         received .. finished
//   first_step        finished .. first_token
FirstTokenTimes SplitTimes(const RequestTimes& at, const PeerTimes& peer);

// A local prefill has no transfer: prefill_queue is admitted .. received, prefill_compute received ..
// finished.
FirstTokenTimes SplitLocalTimes(const RequestTimes& at);

}  // namespace ridgefill::runtime
