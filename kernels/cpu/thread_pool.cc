#include "kernels/cpu/thread_pool.h"

#include <immintrin.h>

namespace ridgefill::kernels::cpu {
namespace {

// About 50 microseconds: longer than the gap between two ops of a step, shorter than a time slice.
constexpr int kSpins = 1500;

}  // namespace

ThreadPool::ThreadPool(int threads) {
  workers_.reserve(threads - 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { Work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(sleep_mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t count, Body body) {
  std::lock_guard<std::mutex> lock(callers_);
  if (count <= 1 || workers_.empty()) {
    for (int64_t task = 0; task < count; ++task) body(task, 0);
    return;
  }
  body_ = &body;
  count_ = count;
  next_task_.store(0);
  open_job_.store(++jobs_);
  if (sleepers_.load() > 0) {
    std::lock_guard<std::mutex> sleep_lock(sleep_mutex_);
    wake_.notify_all();
  }
  RunTasks(0);
  open_job_.store(0);
  for (int spins = 0; inside_.load() != 0; ++spins) {
    if (spins < kSpins) {
      _mm_pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::RunTasks(int thread) {
  const int64_t count = count_;
  for (int64_t task = next_task_.fetch_add(1); task < count; task = next_task_.fetch_add(1))
    (*body_)(task, thread);
}

void ThreadPool::Work(int thread) {
  uint64_t last_job = 0;
  while (!stopping_.load()) {
    WaitForJob(last_job);
    inside_.fetch_add(1);
    const uint64_t job = open_job_.load();
    if (job != 0 && job != last_job) {
      RunTasks(thread);
      last_job = job;
    }
    inside_.fetch_sub(1);
  }
}

void ThreadPool::WaitForJob(uint64_t last_job) {
  const auto ready = [&] {
    const uint64_t job = open_job_.load();
    return stopping_.load() || (job != 0 && job != last_job);
  };
  for (int spin = 0; spin < kSpins; ++spin) {
    if (ready()) return;
    _mm_pause();
  }
  std::unique_lock<std::mutex> lock(sleep_mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, ready);
  sleepers_.fetch_sub(1);
}

}  // namespace ridgefill::kernels::cpu
