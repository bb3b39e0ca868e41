#include "engine/runtime/first_token_times.h"

#include <algorithm>

namespace ridgefill::runtime {

FirstTokenTimes SplitTimes(const RequestTimes& at, const PeerTimes& peer) {
  const absl::Duration none = absl::ZeroDuration();
  FirstTokenTimes times;
  times.decode_queue = at.admitted - at.submitted;
  absl::Duration left = at.received - at.admitted;
  times.prefill_queue = std::min(std::max(peer.queue, none), left);
  left -= times.prefill_queue;
  times.prefill_compute = std::min(std::max(peer.compute, none), left);
  left -= times.prefill_compute;
  times.transfer_exposed = left;
  times.late_pass = at.finished - at.received;
  times.first_step = at.first_token - at.finished;
  return times;
}

FirstTokenTimes SplitLocalTimes(const RequestTimes& at) {
  FirstTokenTimes times;
  times.decode_queue = at.admitted - at.submitted;
  times.prefill_queue = at.received - at.admitted;
  times.prefill_compute = at.finished - at.received;
  times.first_step = at.first_token - at.finished;
  return times;
}

}  // namespace ridgefill::runtime
