// Where a request's time to first token went. The workers report their parts; what is left of it (checking,
// tokenizing, placement, earlier attempts and the ways between the programs) is `route`, so that the parts
// add up.
#pragma once

#include <algorithm>
#include <optional>

#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "ridgefill/v1/decode.pb.h"
#include "ridgefill/v1/generation.pb.h"

namespace ridgefill::router {

// Starts with the request. Not thread-safe.
class RequestTimer {
 public:
  explicit RequestTimer(const base::Clock& clock) : clock_(clock), start_(clock.Monotonic()) {}

  void Admitted() { admission_wait_ = Elapsed(); }
  void DecodeStarted(const v1::DecodeStarted& started) {
    parts_.set_decode_queue(started.decode_queue_seconds());
    parts_.set_prefill_queue(started.prefill_queue_seconds());
    parts_.set_prefill_compute(started.prefill_compute_seconds());
    parts_.set_transfer_exposed(started.transfer_exposed_seconds());
    parts_.set_late_pass(started.late_pass_seconds());
    parts_.set_first_step(started.first_step_seconds());
  }
  // The first call counts.
  void TokenWritten() {
    if (!ttft_.has_value()) ttft_ = Elapsed();
  }

  v1::Timing Now() const {
    v1::Timing out = parts_;
    out.set_admission_wait(admission_wait_);
    out.set_total(Elapsed());
    if (!ttft_.has_value()) return out;
    const double known = admission_wait_ + out.decode_queue() + out.prefill_queue() + out.prefill_compute() +
                         out.transfer_exposed() + out.late_pass() + out.first_step();
    out.set_ttft(*ttft_);
    out.set_route(std::max(0.0, *ttft_ - known));
    return out;
  }

 private:
  double Elapsed() const { return absl::ToDoubleSeconds(clock_.Monotonic() - start_); }

  const base::Clock& clock_;
  const absl::Duration start_;
  double admission_wait_ = 0;
  std::optional<double> ttft_;
  v1::Timing parts_;
};

}  // namespace ridgefill::router
