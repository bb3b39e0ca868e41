// The threads of a CPU backend. The calling thread takes part; workers spin for a moment after a job and then
// sleep, so that the dozens of short jobs of one step do not pay a wake-up each.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace ridgefill::kernels::cpu {

// Thread-safe: concurrent jobs run one after the other.
class ThreadPool {
 public:
  // Called with the task's index and the index of the running thread, [0, threads).
  using Body = absl::FunctionRef<void(int64_t task, int thread)>;

  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs tasks 0..count-1, handed out in order; returns when all are done. Not to be called from a body.
  void ParallelFor(int64_t count, Body body);

 private:
  void Work(int thread);
  void WaitForJob(uint64_t last_job);
  void RunTasks(int thread);

  std::mutex callers_;  // one job at a time

  // The job. Written only while no worker is inside (inside_ == 0 and open_job_ == 0).
  const Body* body_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_task_{0};

  // A worker enters by raising inside_ and then reading open_job_; the caller closes by clearing open_job_
  // and then waiting for inside_ == 0. Either the worker sees the job closed or the caller sees the worker: a
  // sleeping worker never holds a job up. (Both are sequentially consistent.)
  std::atomic<uint64_t> open_job_{0};  // 0: none
  std::atomic<int> inside_{0};
  uint64_t jobs_ = 0;

  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace ridgefill::kernels::cpu
