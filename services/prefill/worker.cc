#include "services/prefill/worker.h"

#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "engine/base/status.h"
#include "services/common/convert.h"
#include "services/prefill/service.h"
#include "services/transport/transport.h"

namespace ridgefill::prefill {
namespace {

// A step is bounded, so a loop that has not come round for this long is stuck.
constexpr absl::Duration kStuck = absl::Seconds(60);

v1::DescribePrefillResponse Describe(const common::LoadedModel& model) {
  v1::DescribePrefillResponse out;
  *out.mutable_hello() = common::ToProto(model.hello);
  out.set_context_tokens(model.context_tokens);
  out.set_layers(model.model->config().layers);
  out.set_loaded_layers(model.model->loaded_layers());
  for (const auto& maps : model.maps) *out.add_maps() = common::ToProto(maps->manifest());
  return out;
}

class WorkerImpl : public PrefillWorker {
 public:
  WorkerImpl(const common::LoadedModel& model, std::unique_ptr<runtime::PrefillEngine> engine,
             const PrefillServiceOptions& options)
      : name_(model.name), engine_(std::move(engine)), service_(*engine_, Describe(model), options) {}

  runtime::PrefillEngine& engine() override { return *engine_; }
  grpc::Service& service() override { return service_; }
  void FillMetrics(common::MetricPage& page) const override;
  bool live() const override { return engine_->Stats().last_step_age < kStuck; }

 private:
  const std::string name_;
  std::unique_ptr<runtime::PrefillEngine> engine_;
  PrefillServiceImpl service_;
};

void WorkerImpl::FillMetrics(common::MetricPage& page) const {
  const runtime::PrefillStats stats = engine_->Stats();
  const common::MetricPage::Labels model = {{"model", name_}};
  const auto with = [&](const char* key, const char* value) {
    common::MetricPage::Labels labels = model;
    labels[key] = value;
    return labels;
  };
  page.Gauge("ridgefill_prefill_queued_requests", "Prompts waiting", stats.queued, model);
  page.Gauge("ridgefill_prefill_running_requests", "Prompts being prefilled", stats.running, model);
  page.Gauge("ridgefill_prefill_queued_tokens", "Tokens of the prompts that wait", stats.queued_tokens,
             model);
  page.Counter("ridgefill_prefill_prompt_tokens_total", "Prompt rows run", stats.prompt_tokens, model);
  page.Counter("ridgefill_prefill_filled_tokens_total", "Prompt rows whose late K and V came from the maps",
               stats.filled_tokens, model);
  page.Counter("ridgefill_prefill_exact_tokens_total", "Prompt rows in the exact set", stats.exact_tokens,
               model);
  page.Counter("ridgefill_prefill_selected_tokens_total", "Of the exact rows, those that QUALITY selected",
               stats.selected_tokens, model);
  page.Counter("ridgefill_prefill_hidden_tokens_total",
               "Prompt rows sent in wire form hidden, for the decode worker to fill", stats.hidden_tokens,
               model);
  constexpr char kRequests[] = "ridgefill_prefill_requests_total";
  constexpr char kRequestsHelp[] = "Prompts by outcome";
  page.Counter(kRequests, kRequestsHelp, stats.requests_ok, with("outcome", "ok"));
  page.Counter(kRequests, kRequestsHelp, stats.requests_failed, with("outcome", "failed"));
  page.Counter(kRequests, kRequestsHelp, stats.requests_cancelled, with("outcome", "cancelled"));
  page.Counter("ridgefill_prefill_transfer_frames_total", "Frames sent to decode workers", stats.frames,
               model);
  page.Counter("ridgefill_prefill_transfer_bytes_total", "Payload bytes sent to decode workers",
               stats.frame_bytes, model);
  page.Counter("ridgefill_prefill_busy_seconds_total", "Time spent in steps",
               absl::ToDoubleSeconds(stats.busy), model);
  constexpr char kBlocks[] = "ridgefill_prefill_blocks";
  constexpr char kBlocksHelp[] = "KV cache blocks by state; they add up to the pool";
  page.Gauge(kBlocks, kBlocksHelp, stats.blocks_free, with("state", "free"));
  page.Gauge(kBlocks, kBlocksHelp, stats.blocks_used, with("state", "used"));
  page.Gauge("ridgefill_prefill_blocks_capacity", "KV cache blocks in all", stats.blocks_total, model);
  page.Gauge("ridgefill_prefill_step_age_seconds", "Since the step loop last came round",
             absl::ToDoubleSeconds(stats.last_step_age), model);
}

// One small prompt through the engine: kernels are picked, memory is touched, a broken model shows itself.
absl::Status WarmUp(runtime::PrefillEngine& engine, const common::LoadedModel& model) {
  RF_ASSIGN_OR_RETURN(const transport::Transport* local, transport::FindTransport("local"));
  transport::Options options;
  options.local_engine = &engine;
  RF_ASSIGN_OR_RETURN(auto directory, local->connect(options));
  RF_ASSIGN_OR_RETURN(auto source, directory->Find(""));
  runtime::PrefillCall call;
  call.hello = model.hello;
  call.tokens.assign(8, 0);
  call.deadline = absl::Now() + absl::Minutes(2);
  const bool whole = model.model->loaded_layers() == model.model->config().layers;
  call.decision.late_pass = whole ? ridge::LatePassAt::kPrefill : ridge::LatePassAt::kDecode;
  if (!whole) call.decision.split = model.maps.front()->manifest().split;
  call.decision.reason = "WARM_UP";
  auto transfer = source->Open(std::move(call), [] {});
  while (true) {
    while (transfer->TryNext().has_value()) {
    }
    if (auto ended = transfer->Ended()) return base::WithContext(*ended, "warm-up of the prefill engine");
    absl::SleepFor(absl::Milliseconds(2));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrefillWorker>> PrefillWorker::Create(const common::LoadedModel& model,
                                                                     const config::v1::PrefillConfig& config,
                                                                     const base::Clock& clock) {
  runtime::PrefillEngineOptions options;
  options.chunk_tokens = config.chunk_tokens();
  options.context_tokens = model.context_tokens;
  // Without it the engine takes two prompts' worth; a cache too small for one must not end up there.
  if (config.kv_memory_mb() > 0) {
    RF_RETURN_IF_ERROR(common::CheckKvMemory(model, config.kv_memory_mb()));
    options.cache_blocks = common::BlocksInMemory(model.model->config(), config.kv_memory_mb());
  }
  options.max_queued = config.max_queued();
  RF_ASSIGN_OR_RETURN(auto engine, runtime::PrefillEngine::Create(*model.model, model.map_sets(), model.hello,
                                                                  clock, options));
  RF_RETURN_IF_ERROR(WarmUp(*engine, model));
  PrefillServiceOptions service;
  service.sink_buffer_bytes = config.sink_buffer_mb() << 20;
  return std::make_unique<WorkerImpl>(model, std::move(engine), service);
}

}  // namespace ridgefill::prefill
