// A few threads for work that would hold up gRPC's own: tokenizing a long prompt.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "engine/base/bounded_queue.h"

namespace ridgefill::router {

// Thread-safe. The destructor runs what is queued, then joins.
class WorkPool {
 public:
  WorkPool(int threads, size_t max_queued) : queue_(max_queued) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
  }
  ~WorkPool() {
    queue_.Close();
    for (auto& thread : threads_) thread.join();
  }

  // False when the queue is full.
  bool Post(std::function<void()> work) { return queue_.TryPush(std::move(work)); }

 private:
  void Loop() {
    while (true) {
      auto work = queue_.Pop(absl::InfiniteDuration());
      if (!work.has_value()) return;
      (*work)();
    }
  }

  base::BoundedQueue<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace ridgefill::router
