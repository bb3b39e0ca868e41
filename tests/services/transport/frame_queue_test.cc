#include "services/transport/frame_queue.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"

namespace ridgefill::transport {
namespace {

runtime::KvFrame Frame(uint64_t sequence, size_t bytes) {
  return {sequence, runtime::KvBody{}, std::string(bytes, 'x'), 0};
}

TEST(FrameQueueTest, KeepsOrderAndEndsAfterTheLastFrame) {
  FrameQueue queue(1 << 20);
  int woken = 0;
  queue.SetReaderWakeup([&] { ++woken; });
  queue.Push(Frame(0, 1));
  queue.Push(Frame(1, 1));
  queue.End(absl::OkStatus());
  queue.End(absl::InternalError("too late"));
  queue.Push(Frame(2, 1));
  EXPECT_EQ(woken, 3);
  EXPECT_FALSE(queue.Ended().has_value());
  EXPECT_EQ(queue.TryPop()->sequence, 0u);
  EXPECT_EQ(queue.TryPop()->sequence, 1u);
  EXPECT_FALSE(queue.TryPop().has_value());
  EXPECT_EQ(queue.Ended(), absl::OkStatus());
}

TEST(FrameQueueTest, IsBoundedByBytesAndWakesTheWriter) {
  FrameQueue queue(1000);
  int woken = 0;
  queue.SetWriterWakeup([&] { ++woken; });
  EXPECT_TRUE(queue.HasRoom());
  queue.Push(Frame(0, 900));
  queue.Push(Frame(1, 900));
  EXPECT_FALSE(queue.HasRoom());
  queue.TryPop();
  EXPECT_FALSE(queue.HasRoom());
  EXPECT_EQ(woken, 0) << "still full";
  queue.TryPop();
  EXPECT_TRUE(queue.HasRoom());
  EXPECT_EQ(woken, 1);
}

TEST(FrameQueueTest, EmptyFramesCountToo) {
  FrameQueue queue(1000);
  for (int i = 0; i < 4; ++i) queue.Push(Frame(i, 0));
  EXPECT_FALSE(queue.HasRoom());
}

TEST(FrameQueueTest, CloseDropsEverythingAndNeverBlocksTheWriter) {
  FrameQueue queue(10);
  int woken = 0;
  queue.SetWriterWakeup([&] { ++woken; });
  queue.Push(Frame(0, 100));
  queue.Close();
  queue.Close();
  EXPECT_EQ(woken, 1);
  EXPECT_TRUE(queue.closed());
  EXPECT_TRUE(queue.HasRoom());
  queue.Push(Frame(1, 100));
  EXPECT_FALSE(queue.TryPop().has_value());
  queue.End(absl::CancelledError());
  EXPECT_EQ(queue.Ended()->code(), absl::StatusCode::kCancelled);
}

TEST(FrameQueueTest, TwoThreadsMoveEveryFrameInOrder) {
  constexpr uint64_t kFrames = 20'000;
  FrameQueue queue(4096);
  std::thread writer([&] {
    for (uint64_t i = 0; i < kFrames; ++i) {
      while (!queue.HasRoom()) std::this_thread::yield();
      queue.Push(Frame(i, i % 300));
    }
    queue.End(absl::OkStatus());
  });
  uint64_t next = 0;
  while (!queue.Ended().has_value()) {
    if (auto frame = queue.TryPop()) {
      ASSERT_EQ(frame->sequence, next);
      ASSERT_EQ(frame->payload.size(), next % 300);
      ++next;
    } else {
      std::this_thread::yield();
    }
  }
  writer.join();
  EXPECT_EQ(next, kFrames);
}

}  // namespace
}  // namespace ridgefill::transport
