#include "services/router/admission.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "engine/base/status.h"
#include "services/router/work_pool.h"

namespace ridgefill::router {
namespace {

class AdmissionTest : public testing::Test {
 protected:
  Admission::Decided Into(std::vector<std::string>& log, const std::string& name) {
    return [&log, name](const absl::Status& status) {
      const auto detail = base::GetErrorDetail(status);
      log.push_back(name + (status.ok() ? " ok" : " " + (detail.has_value() ? detail->reason : "?")));
    };
  }
  base::ManualClock clock_;
  std::vector<std::string> log_;
};

TEST_F(AdmissionTest, FullQueueRefusesAtOnce) {
  Admission admission({1, 1, absl::Seconds(10)}, clock_);
  admission.Enter(Into(log_, "a"));
  admission.Enter(Into(log_, "b"));
  admission.Enter(Into(log_, "c"));
  EXPECT_THAT(log_, testing::ElementsAre("a ok", "c ROUTER_QUEUE_FULL"));
  EXPECT_EQ(admission.in_flight(), 1);
  EXPECT_EQ(admission.queued(), 1);
  admission.Leave();
  EXPECT_EQ(log_.back(), "b ok");
  EXPECT_EQ(admission.in_flight(), 1);
  admission.Leave();
  EXPECT_EQ(admission.in_flight(), 0);
}

TEST_F(AdmissionTest, FirstComeFirstServed) {
  Admission admission({1, 9, absl::Seconds(10)}, clock_);
  for (const char* name : {"a", "b", "c"}) admission.Enter(Into(log_, name));
  admission.Leave();
  admission.Leave();
  EXPECT_THAT(log_, testing::ElementsAre("a ok", "b ok", "c ok"));
}

TEST_F(AdmissionTest, WaitingTooLongIsRefused) {
  Admission admission({1, 9, absl::Seconds(10)}, clock_);
  admission.Enter(Into(log_, "a"));
  admission.Enter(Into(log_, "b"));
  clock_.Advance(absl::Seconds(6));
  admission.Enter(Into(log_, "c"));
  admission.Expire();
  EXPECT_EQ(log_.size(), 1u);
  clock_.Advance(absl::Seconds(4));
  admission.Expire();
  EXPECT_EQ(log_.back(), "b ROUTER_QUEUE_TIMEOUT");
  EXPECT_EQ(admission.queued(), 1);
}

TEST_F(AdmissionTest, WithdrawnOnesLeaveTheQueueAndTakeNoPlace) {
  Admission admission({1, 9, absl::Seconds(10)}, clock_);
  admission.Enter(Into(log_, "a"));
  const uint64_t ticket = admission.Enter(Into(log_, "b"));
  admission.Enter(Into(log_, "c"));
  admission.Withdraw(ticket);
  admission.Withdraw(ticket);
  EXPECT_EQ(log_.back(), "b CANCELLED");
  admission.Leave();
  EXPECT_THAT(log_, testing::ElementsAre("a ok", "b CANCELLED", "c ok"));
}

TEST_F(AdmissionTest, ClosedRefusesNewOnesButKeepsItsPromises) {
  Admission admission({1, 9, absl::Seconds(10)}, clock_);
  admission.Enter(Into(log_, "a"));
  admission.Enter(Into(log_, "b"));
  admission.Close();
  admission.Enter(Into(log_, "c"));
  EXPECT_EQ(log_.back(), "c DRAINING");
  admission.Leave();
  EXPECT_EQ(log_.back(), "b ok");
}

TEST_F(AdmissionTest, ManyThreadsNeverExceedTheBoundAndLoseNobody) {
  constexpr int kThreads = 4, kEach = 2000, kMost = 3;
  Admission admission({kMost, kThreads * kEach, absl::Hours(1)}, clock_);
  std::atomic<int> inside = 0, most = 0, served = 0;
  {
    WorkPool pool(kThreads, kThreads * kEach);
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kEach; ++i) {
          admission.Enter([&](const absl::Status& status) {
            ASSERT_TRUE(status.ok());
            const int now = ++inside;
            int seen = most;
            while (seen < now && !most.compare_exchange_weak(seen, now)) {
            }
            ASSERT_TRUE(pool.Post([&] {
              --inside;
              ++served;
              admission.Leave();
            }));
          });
        }
      });
    }
    for (auto& thread : threads) thread.join();
    while (served < kThreads * kEach) std::this_thread::yield();
  }
  EXPECT_LE(most, kMost);
  EXPECT_EQ(admission.in_flight(), 0);
}

TEST(WorkPoolTest, IsBoundedAndFinishesWhatItTook) {
  std::atomic<int> ran = 0;
  {
    WorkPool pool(1, 2);
    std::atomic<bool> started = false, go = false;
    ASSERT_TRUE(pool.Post([&] {
      started = true;
      while (!go) std::this_thread::yield();
      ++ran;
    }));
    while (!started) std::this_thread::yield();
    EXPECT_TRUE(pool.Post([&] { ++ran; }));
    EXPECT_TRUE(pool.Post([&] { ++ran; }));
    EXPECT_FALSE(pool.Post([&] { ++ran; }));
    go = true;
  }
  EXPECT_EQ(ran, 3);
}

}  // namespace
}  // namespace ridgefill::router
