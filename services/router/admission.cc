#include "services/router/admission.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace ridgefill::router {

uint64_t Admission::Enter(Decided decided) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) {
      status = base::Error(absl::StatusCode::kUnavailable, "DRAINING", "the router is shutting down");
    } else if (in_flight_ < options_.max_in_flight && waiting_.empty()) {
      ++in_flight_;
    } else if (static_cast<int>(waiting_.size()) < options_.max_queued) {
      waiting_.push_back({next_ticket_, clock_.Monotonic(), std::move(decided)});
      return next_ticket_++;
    } else {
      status = base::Error(absl::StatusCode::kResourceExhausted, "ROUTER_QUEUE_FULL",
                           absl::StrCat(in_flight_, " requests are in flight (max_in_flight) and ",
                                        waiting_.size(), " wait (max_queued); try again later"));
    }
  }
  decided(status);
  return 0;
}

void Admission::Leave() {
  Decided next;
  {
    absl::MutexLock lock(&mutex_);
    if (waiting_.empty()) {
      --in_flight_;
      return;
    }
    next = std::move(waiting_.front().decided);
    waiting_.pop_front();  // the place changes hands
  }
  next(absl::OkStatus());
}

void Admission::Withdraw(uint64_t ticket) {
  Decided found;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
      if (it->ticket != ticket) continue;
      found = std::move(it->decided);
      waiting_.erase(it);
      break;
    }
  }
  if (found)
    found(base::Error(absl::StatusCode::kCancelled, "CANCELLED", "cancelled while waiting for admission"));
}

void Admission::Expire() {
  std::vector<Decided> late;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_.Monotonic();
    while (!waiting_.empty() && now - waiting_.front().since >= options_.queue_timeout) {
      late.push_back(std::move(waiting_.front().decided));
      waiting_.pop_front();
    }
  }
  for (const Decided& decided : late) {
    decided(base::Error(absl::StatusCode::kResourceExhausted, "ROUTER_QUEUE_TIMEOUT",
                        absl::StrCat("no place among the requests in flight within ",
                                     absl::FormatDuration(options_.queue_timeout),
                                     " (queue_timeout_seconds); try again later")));
  }
}

void Admission::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
}

int Admission::in_flight() const {
  absl::MutexLock lock(&mutex_);
  return in_flight_;
}

int Admission::queued() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(waiting_.size());
}

}  // namespace ridgefill::router
