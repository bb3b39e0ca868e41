#include "services/router/router.h"

#include <grpcpp/channel.h>

#include <atomic>
#include <utility>

#include "absl/time/clock.h"
#include "services/router/core.h"
#include "services/router/service.h"
#include "services/router/worker_monitor.h"

namespace ridgefill::router {

Core::Core(const std::string& model, std::vector<std::string> prefill_workers,
           std::vector<std::string> decode_workers, const AdmissionOptions& admission_options,
           const base::Clock& the_clock)
    : clock(the_clock),
      prefill("prefill", std::move(prefill_workers)),
      decode("decode", std::move(decode_workers)),
      admission(admission_options, the_clock),
      metrics(model),
      // Each admitted call has at most one piece of work in the pool; the rest is for Tokenize and
      // Detokenize.
      pool(2, admission_options.max_in_flight + 64) {}

namespace {

constexpr absl::Duration kStuck = absl::Seconds(30);

std::vector<std::string> Addresses(const std::vector<WorkerAddress>& workers) {
  std::vector<std::string> out;
  out.reserve(workers.size());
  for (const auto& worker : workers) out.push_back(worker.address);
  return out;
}

std::vector<std::shared_ptr<grpc::Channel>> Channels(const std::vector<WorkerAddress>& workers) {
  std::vector<std::shared_ptr<grpc::Channel>> out;
  out.reserve(workers.size());
  for (const auto& worker : workers) out.push_back(worker.channel);
  return out;
}

AdmissionOptions MakeAdmission(const config::v1::RouterConfig& config) {
  return {config.max_in_flight(), config.max_queued(), absl::Seconds(config.queue_timeout_seconds())};
}

class RouterImpl : public Router {
 public:
  explicit RouterImpl(const RouterOptions& options)
      : core_(options.model, Addresses(options.prefill), Addresses(options.decode),
              MakeAdmission(options.config), *options.clock),
        service_(core_),
        gauges_([this](common::MetricPage& page) { FillGauges(page); }),
        monitor_(MonitorSettings(options)) {
    Configure(options);
    monitor_.WatchPrefill(core_.prefill, Channels(options.prefill));
    monitor_.WatchDecode(core_.decode, Channels(options.decode));
    last_round_ = core_.clock.Monotonic();
    monitor_.Start([this] {
      core_.admission.Expire();
      last_round_ = core_.clock.Monotonic();
    });
  }

  grpc::Service& service() override { return service_; }

  void Drain(absl::Time deadline) override {
    core_.admission.Close();
    while (core_.admission.in_flight() + core_.admission.queued() > 0 && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(10));
    }
  }

  std::vector<const prometheus::Collectable*> metrics() const override {
    return {&core_.metrics.collectable(), &gauges_};
  }
  bool live() const override { return core_.clock.Monotonic() - last_round_.load() < kStuck; }

 private:
  static MonitorOptions MonitorSettings(const RouterOptions& options) {
    MonitorOptions out;
    out.interval = absl::Milliseconds(options.config.worker_check_ms());
    out.identity = options.identity;
    return out;
  }

  void Configure(const RouterOptions& options) {
    const auto& config = options.config;
    core_.tokenizer = options.tokenizer;
    core_.limits = {options.model, options.vocab_size, options.context_tokens, config.max_prompt_bytes()};
    core_.policy = {config.policy().auto_min_tokens(), config.policy().local_max_tokens(),
                    config.policy().forbid_filled(),   config.policy().tail(),
                    config.policy().share(),           config.policy().max_share()};
    core_.policy.speed_split = config.policy().speed_split();
    core_.policy.quality_split = config.policy().quality_split();
    if (config.policy().wire_form() == "hidden") core_.policy.wire_form = ridge::WireForm::kHidden;
    core_.default_deadline = absl::Seconds(config.default_deadline_seconds());
    core_.architecture = options.identity.arch;
    core_.chat = options.tokenizer->EncodeChat({{"user", "a"}}).ok();
    for (const auto& worker : options.decode) {
      core_.decode_stubs.push_back(v1::DecodeService::NewStub(worker.channel));
    }
  }

  void FillGauges(common::MetricPage& page) const {
    const common::MetricPage::Labels model = {{"model", core_.limits.model}};
    page.Gauge("ridgefill_router_in_flight_requests", "Requests admitted and not yet done",
               core_.admission.in_flight(), model);
    page.Gauge("ridgefill_router_queued_requests", "Requests waiting for admission", core_.admission.queued(),
               model);
    for (const Placement* workers : {&core_.prefill, &core_.decode}) {
      for (int i = 0; i < workers->size(); ++i) {
        const common::MetricPage::Labels worker = {{"role", workers->role()},
                                                   {"worker", workers->address(i)}};
        page.Gauge("ridgefill_router_worker_serving", "1 while the worker's health is SERVING",
                   workers->report(i).serving ? 1 : 0, worker);
        page.Gauge("ridgefill_router_worker_in_flight_requests", "Requests of this router at the worker",
                   workers->in_flight(i), worker);
      }
    }
  }

  Core core_;
  GenerationServiceImpl service_;
  common::PageCollectable gauges_;
  std::atomic<absl::Duration> last_round_;
  WorkerMonitor monitor_;  // last: its thread uses the rest
};

}  // namespace

std::unique_ptr<Router> Router::Create(const RouterOptions& options) {
  return std::make_unique<RouterImpl>(options);
}

}  // namespace ridgefill::router
