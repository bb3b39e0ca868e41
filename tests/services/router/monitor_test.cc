// WorkerMonitor: who is one of the router's workers.
#include "services/router/worker_monitor.h"

#include <gmock/gmock.h>

#include <atomic>

#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"

namespace ridgefill::router {
namespace {

const base::ModelIdentity kMine = {"mine", "llama", "30 layers", "t", "w"};

// What is wrong with a worker that differs from the router by `change`.
template <typename Change>
std::string Problem(Change change) {
  v1::ModelIdentity worker;
  worker.set_name(kMine.name);
  worker.set_arch(kMine.arch);
  worker.set_dimensions(kMine.dimensions);
  worker.set_tokenizer_digest(kMine.tokenizer_digest);
  worker.set_weights_digest(kMine.weights_digest);
  change(worker);
  return ModelProblem(kMine, worker);
}

TEST(ModelProblemTest, OnlyTheNameMayDiffer) {
  EXPECT_EQ(Problem([](auto&) {}), "");
  EXPECT_EQ(Problem([](auto& w) { w.set_name("another folder"); }), "");
  EXPECT_THAT(Problem([](auto& w) { w.set_arch("qwen2"); }), testing::HasSubstr("architecture is qwen2"));
  EXPECT_THAT(Problem([](auto& w) { w.set_dimensions("32 layers"); }), testing::HasSubstr("32 layers"));
  EXPECT_THAT(Problem([](auto& w) { w.set_tokenizer_digest("u"); }), testing::HasSubstr("tokenizer"));
  EXPECT_THAT(Problem([](auto& w) { w.set_weights_digest("v"); }),
              testing::HasSubstr("weights digest is v, the router's w"));
  EXPECT_THAT(Problem([](auto& w) { w.clear_weights_digest(); }), testing::HasSubstr("unknown"));
}

TEST(WorkerMonitorTest, ComesRoundHoweverSeldomWorkersAreAsked) {
  MonitorOptions options;
  options.interval = absl::Seconds(60);
  WorkerMonitor monitor(options);
  absl::BlockingCounter rounds(2);
  std::atomic<int> count = 0;
  monitor.Start([&] {
    if (++count <= 2) rounds.DecrementCount();
  });
  const absl::Time start = absl::Now();
  rounds.Wait();
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

}  // namespace
}  // namespace ridgefill::router
