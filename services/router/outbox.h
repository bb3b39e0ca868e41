// Messages that wait for the client. Deltas that find a write in progress become one, so a slow client gets
// fewer and larger messages and never a queue of them. What waits is bounded by max_tokens.
#pragma once

#include <optional>
#include <utility>

#include "ridgefill/v1/generation.pb.h"

namespace ridgefill::router {

// Not thread-safe.
class Outbox {
 public:
  void Started(v1::Started started) { started_ = std::move(started); }
  v1::Delta& delta() { return delta_; }  // append here
  void Finished(v1::Finished finished) { finished_ = std::move(finished); }

  // The next message in order: Started, Delta, Finished.
  std::optional<v1::GenerateResponse> Next() {
    v1::GenerateResponse next;
    if (started_.has_value()) {
      *next.mutable_started() = *std::exchange(started_, std::nullopt);
    } else if (!delta_.tokens().empty() || !delta_.text().empty()) {
      next.mutable_delta()->Swap(&delta_);
    } else if (finished_.has_value()) {
      *next.mutable_finished() = *std::exchange(finished_, std::nullopt);
    } else {
      return std::nullopt;
    }
    return next;
  }

 private:
  std::optional<v1::Started> started_;
  v1::Delta delta_;
  std::optional<v1::Finished> finished_;
};

}  // namespace ridgefill::router
