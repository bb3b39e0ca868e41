#include "services/cli/trio.h"

#include <utility>

#include "engine/base/clock.h"
#include "engine/base/status.h"
#include "services/common/config.h"
#include "services/common/monitoring.h"
#include "services/common/server.h"
#include "services/decode/worker.h"
#include "services/prefill/worker.h"
#include "services/router/router.h"

namespace ridgefill::cli {
namespace {

absl::StatusOr<common::LoadedModel> Load(const config::v1::ServeConfig& config, const std::string& home) {
  common::LoadModelOptions options;
  options.home = home;
  options.source = config.router().source();
  options.backend = config.backend();
  options.context_tokens = config.decode().context_tokens();
  options.kv_memory_mb = config.decode().kv_memory_mb() + config.prefill().kv_memory_mb();
  options.kv_cache_contexts = config.prefill().kv_memory_mb() > 0 ? 0 : 2;
  return common::LoadModel(options);
}

// Members in order of construction: each uses those above it.
class TrioImpl : public Trio {
 public:
  absl::Status Init(const config::v1::ServeConfig& config, const std::string& home) {
    RF_ASSIGN_OR_RETURN(model_, Load(config, home));
    RF_ASSIGN_OR_RETURN(prefill_, prefill::PrefillWorker::Create(model_, config.prefill(), *clock_));
    RF_ASSIGN_OR_RETURN(decode_, decode::DecodeWorker::Create(model_, common::LocalDecode(config), *clock_,
                                                              &prefill_->engine()));
    common::ServerOptions options;
    options.services = {&prefill_->service(), &decode_->service()};
    options.health_names = {prefill::kServiceName, decode::kServiceName};
    RF_ASSIGN_OR_RETURN(workers_, common::Server::Start(options));
    workers_->SetServing(true);
    router_ = router::Router::Create(MakeRouterOptions(config.router()));
    return absl::OkStatus();
  }

  grpc::Service& service() override { return router_->service(); }

  std::shared_ptr<grpc::Channel> InProcessChannel() override {
    if (client_server_ == nullptr) {
      common::ServerOptions options;
      options.services = {&router_->service()};
      options.health_names = {router::kServiceName};
      client_server_ = *common::Server::Start(options);  // without an address nothing can be in use
      client_server_->SetServing(true);
    }
    return client_server_->InProcessChannel();
  }

  const common::LoadedModel& model() const override { return model_; }

  std::vector<const prometheus::Collectable*> metrics() const override {
    auto all = router_->metrics();
    all.push_back(&page_);
    return all;
  }
  bool live() const override { return router_->live() && prefill_->live() && decode_->live(); }

  void Drain(absl::Time deadline) override {
    router_->Drain(deadline);
    decode_->engine().Drain(deadline);
    prefill_->engine().Drain(deadline);
  }

 private:
  router::RouterOptions MakeRouterOptions(const config::v1::RouterConfig& config) {
    router::RouterOptions options;
    options.config = config;
    const auto channel = workers_->InProcessChannel();
    options.prefill = {{"local", channel}};
    options.decode = {{"local", channel}};
    options.model = model_.name;
    options.identity = model_.hello.model;
    options.vocab_size = model_.model->config().vocab;
    options.context_tokens = model_.model->config().context;
    options.tokenizer = model_.tokenizer.get();
    options.clock = clock_.get();
    return options;
  }

  const std::unique_ptr<base::Clock> clock_ = base::MakeSystemClock();
  common::LoadedModel model_;
  std::unique_ptr<prefill::PrefillWorker> prefill_;
  std::unique_ptr<decode::DecodeWorker> decode_;
  std::unique_ptr<common::Server> workers_;
  std::unique_ptr<router::Router> router_;
  std::unique_ptr<common::Server> client_server_;
  common::PageCollectable page_{[this](common::MetricPage& page) {
    prefill_->FillMetrics(page);
    decode_->FillMetrics(page);
  }};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trio>> Trio::Create(const config::v1::ServeConfig& config,
                                                   const std::string& home) {
  auto trio = std::make_unique<TrioImpl>();
  RF_RETURN_IF_ERROR(trio->Init(config, home));
  return trio;
}

}  // namespace ridgefill::cli
