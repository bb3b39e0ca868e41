#include "services/router/worker_monitor.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/log.h"
#include "engine/runtime/kv_frame.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "ridgefill/v1/decode.grpc.pb.h"
#include "ridgefill/v1/prefill.grpc.pb.h"

namespace ridgefill::router {
namespace {

constexpr absl::Duration kLongestRound = absl::Seconds(1);

std::vector<MapFacts> Facts(const google::protobuf::RepeatedPtrField<v1::MapSetInfo>& maps) {
  std::vector<MapFacts> out;
  for (const v1::MapSetInfo& set : maps) {
    out.push_back({set.split(), set.tail_default(), set.tail_minimum(), set.min_bulk(), set.digest()});
  }
  return out;
}

WorkerReport ReportOf(const v1::DescribePrefillResponse& description) {
  WorkerReport report;
  report.load = int64_t{description.queued()} + description.running();
  report.context_tokens = description.context_tokens();
  report.layers = description.layers();
  report.loaded_layers = description.loaded_layers();
  report.maps = Facts(description.maps());
  return report;
}

WorkerReport ReportOf(const v1::DescribeDecodeResponse& description) {
  WorkerReport report;
  report.load = int64_t{description.queued()} + description.running();
  report.context_tokens = description.context_tokens();
  report.maps = Facts(description.maps());
  return report;
}

// What differs between the roles.
struct PrefillRole {
  using Stub = v1::PrefillService::Stub;
  using Request = v1::DescribePrefillRequest;
  using Response = v1::DescribePrefillResponse;
  static constexpr char kService[] = "ridgefill.v1.PrefillService";
  static std::unique_ptr<Stub> NewStub(const std::shared_ptr<grpc::Channel>& channel) {
    return v1::PrefillService::NewStub(channel);
  }
  template <typename... Args>
  static void Describe(Stub& stub, Args&&... args) {
    stub.async()->DescribePrefill(std::forward<Args>(args)...);
  }
};

struct DecodeRole {
  using Stub = v1::DecodeService::Stub;
  using Request = v1::DescribeDecodeRequest;
  using Response = v1::DescribeDecodeResponse;
  static constexpr char kService[] = "ridgefill.v1.DecodeService";
  static std::unique_ptr<Stub> NewStub(const std::shared_ptr<grpc::Channel>& channel) {
    return v1::DecodeService::NewStub(channel);
  }
  template <typename... Args>
  static void Describe(Stub& stub, Args&&... args) {
    stub.async()->DescribeDecode(std::forward<Args>(args)...);
  }
};

}  // namespace

std::string ProtocolProblem(int worker) {
  const int mine = runtime::Hello().protocol_major;
  if (worker == mine) return "";
  return absl::StrCat("it speaks protocol ", worker, ", the router ", mine);
}

std::string ModelProblem(const base::ModelIdentity& mine, const v1::ModelIdentity& worker) {
  const auto differs = [](absl::string_view what, const std::string& here, const std::string& there) {
    return absl::StrCat("it serves another model than the router's: its ", what, " is ",
                        there.empty() ? "unknown" : there, ", the router's ", here);
  };
  if (worker.arch() != mine.arch) return differs("architecture", mine.arch, worker.arch());
  if (worker.dimensions() != mine.dimensions) {
    return differs("size", mine.dimensions, worker.dimensions());
  }
  if (worker.tokenizer_digest() != mine.tokenizer_digest) {
    return differs("tokenizer digest", mine.tokenizer_digest, worker.tokenizer_digest());
  }
  // Of two fine-tunings of one model nothing else differs. Another encoding differs here as well, and is
  // refused: workers of different encodings refuse each other, and answers would depend on the placement.
  if (worker.weights_digest() != mine.weights_digest) {
    return differs("weights digest", mine.weights_digest, worker.weights_digest());
  }
  return "";
}

// One worker: health first, then, if it is SERVING, what it is and how busy.
class WorkerTarget {
 public:
  WorkerTarget(Placement& placement, int index, const MonitorOptions& options)
      : placement_(placement), index_(index), options_(options) {}
  virtual ~WorkerTarget() = default;

  void StartCheck() {
    {
      absl::MutexLock lock(&mutex_);
      if (busy_) return;
      busy_ = true;
    }
    Check();
  }
  // For the first round, and before destruction.
  void AwaitIdle(absl::Duration at_most) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(
                                +[](bool* busy) { return !*busy; }, &busy_),
                            at_most);
  }

 protected:
  virtual void Check() = 0;
  void Done(const WorkerReport& report, std::string problem) {
    placement_.Update(index_, report);
    if (problem != last_problem_) LogChange(problem);
    last_problem_ = std::move(problem);
    absl::MutexLock lock(&mutex_);
    busy_ = false;
  }
  const MonitorOptions& options() const { return options_; }

 private:
  void LogChange(const std::string& problem) const {
    base::Log(problem.empty() ? base::Severity::kInfo : base::Severity::kWarning,
              problem.empty() ? "worker_serving" : "worker_not_serving",
              {{"role", placement_.role()}, {"worker", placement_.address(index_)}, {"problem", problem}});
  }

  Placement& placement_;
  const int index_;
  const MonitorOptions& options_;
  std::string last_problem_ = "not checked yet";  // by the one check under way
  absl::Mutex mutex_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
};

namespace {

// Messages and contexts of one check; owned by the callbacks.
template <typename Role>
struct Probe {
  grpc::ClientContext health_context, describe_context;
  grpc::health::v1::HealthCheckRequest health_request;
  grpc::health::v1::HealthCheckResponse health;
  typename Role::Request describe_request;
  typename Role::Response description;
};

template <typename Role>
class RoleTarget : public WorkerTarget {
 public:
  RoleTarget(Placement& placement, int index, const MonitorOptions& options,
             const std::shared_ptr<grpc::Channel>& channel)
      : WorkerTarget(placement, index, options),
        health_(grpc::health::v1::Health::NewStub(channel)),
        stub_(Role::NewStub(channel)) {}

 private:
  void Check() override {
    auto probe = std::make_shared<Probe<Role>>();
    const auto deadline = absl::ToChronoTime(absl::Now() + options().timeout);
    probe->health_context.set_deadline(deadline);
    probe->describe_context.set_deadline(deadline);
    probe->health_request.set_service(Role::kService);
    health_->async()->Check(&probe->health_context, &probe->health_request, &probe->health,
                            [this, probe](const grpc::Status& status) { OnHealth(probe, status); });
  }

  void OnHealth(const std::shared_ptr<Probe<Role>>& probe, const grpc::Status& status) {
    if (!status.ok()) return Done({}, status.error_message());
    if (probe->health.status() != grpc::health::v1::HealthCheckResponse::SERVING) {
      return Done({}, "its health is not SERVING");
    }
    Role::Describe(*stub_, &probe->describe_context, &probe->describe_request, &probe->description,
                   [this, probe](const grpc::Status& described) {
                     if (!described.ok()) return Done({}, described.error_message());
                     WorkerReport report = ReportOf(probe->description);
                     std::string problem = ProtocolProblem(probe->description.hello().protocol_major());
                     if (problem.empty()) {
                       problem = ModelProblem(options().identity, probe->description.hello().model());
                     }
                     report.serving = problem.empty();
                     Done(report, std::move(problem));
                   });
  }

  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
  std::unique_ptr<typename Role::Stub> stub_;
};

}  // namespace

WorkerMonitor::WorkerMonitor(MonitorOptions options) : options_(std::move(options)) {}

WorkerMonitor::~WorkerMonitor() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
  for (const auto& target : targets_) target->AwaitIdle(absl::InfiniteDuration());
}

void WorkerMonitor::WatchPrefill(Placement& placement, std::vector<std::shared_ptr<grpc::Channel>> channels) {
  for (int i = 0; i < placement.size(); ++i) {
    targets_.push_back(std::make_unique<RoleTarget<PrefillRole>>(placement, i, options_, channels[i]));
  }
}

void WorkerMonitor::WatchDecode(Placement& placement, std::vector<std::shared_ptr<grpc::Channel>> channels) {
  for (int i = 0; i < placement.size(); ++i) {
    targets_.push_back(std::make_unique<RoleTarget<DecodeRole>>(placement, i, options_, channels[i]));
  }
}

void WorkerMonitor::Start(std::function<void()> every_round) {
  every_round_ = std::move(every_round);
  for (const auto& target : targets_) target->StartCheck();
  const absl::Time deadline = absl::Now() + options_.timeout;
  for (const auto& target : targets_) target->AwaitIdle(deadline - absl::Now());
  thread_ = std::thread([this] { Loop(); });
}

void WorkerMonitor::Loop() {
  absl::Time next_check = absl::Now() + options_.interval;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const absl::Duration pause = std::min(next_check - absl::Now(), kLongestRound);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), pause)) return;
    }
    every_round_();
    if (absl::Now() < next_check) continue;
    next_check = absl::Now() + options_.interval;
    for (const auto& target : targets_) target->StartCheck();
  }
}

}  // namespace ridgefill::router
