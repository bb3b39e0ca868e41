#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace ridgefill::kernels::cpu {
namespace {

TEST(ThreadPoolTest, RunsEveryTaskOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t count : {0, 1, 2, 3, 100, 1000}) {
      std::vector<int> runs(count, 0);  // each task is one thread's alone: no lock
      pool.ParallelFor(count, [&](int64_t task, int thread) {
        ++runs[task];
        EXPECT_TRUE(thread >= 0 && thread < threads);
      });
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(runs[i], 1) << i << " of " << count;
    }
  }
}

// Threads have distinct indices at any moment: scratch memory is theirs alone.
TEST(ThreadPoolTest, ThreadIndicesAreNotShared) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> busy(4);
  std::atomic<int> clashes{0};
  for (int round = 0; round < 50; ++round) {
    pool.ParallelFor(40, [&](int64_t, int thread) {
      if (busy[thread].fetch_add(1) != 0) ++clashes;
      std::this_thread::yield();
      busy[thread].fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes.load(), 0);
}

// Jobs after the workers went to sleep, and jobs in quick succession, see the right body and fields.
TEST(ThreadPoolTest, SleepingAndSpinningWorkersJoin) {
  ThreadPool pool(3);
  for (int round = 0; round < 300; ++round) {
    if (round % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(round % 7 + 2, [&](int64_t task, int) { sum += task + round; });
    const int64_t n = round % 7 + 2;
    ASSERT_EQ(sum.load(), n * (n - 1) / 2 + n * round);
  }
}

TEST(ThreadPoolTest, CallersTakeTurns) {
  ThreadPool pool(2);
  std::vector<std::thread> callers;
  callers.reserve(3);
  std::vector<int64_t> sums(3, 0);
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&, c] {
      for (int round = 0; round < 100; ++round) {
        std::atomic<int64_t> sum{0};
        pool.ParallelFor(10, [&](int64_t task, int) { sum += task; });
        sums[c] += sum;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (int64_t sum : sums) EXPECT_EQ(sum, 4500);
}

}  // namespace
}  // namespace ridgefill::kernels::cpu
