#include "services/decode/worker.h"

#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "engine/base/status.h"
#include "services/common/convert.h"
#include "services/decode/service.h"
#include "services/transport/transport.h"

namespace ridgefill::decode {
namespace {

// A step is bounded, so a loop that has not come round for this long is stuck.
constexpr absl::Duration kStuck = absl::Seconds(60);

v1::DescribeDecodeResponse Describe(const common::LoadedModel& model) {
  v1::DescribeDecodeResponse out;
  *out.mutable_hello() = common::ToProto(model.hello);
  out.set_context_tokens(model.context_tokens);
  for (const auto& maps : model.maps) *out.add_maps() = common::ToProto(maps->manifest());
  return out;
}

class WorkerImpl : public DecodeWorker {
 public:
  WorkerImpl(const common::LoadedModel& model, std::unique_ptr<runtime::KvSourceDirectory> sources,
             std::unique_ptr<runtime::DecodeEngine> engine)
      : name_(model.name),
        sources_(std::move(sources)),
        engine_(std::move(engine)),
        service_(*engine_, Describe(model)) {}

  runtime::DecodeEngine& engine() override { return *engine_; }
  grpc::Service& service() override { return service_; }
  void FillMetrics(common::MetricPage& page) const override;
  bool live() const override { return engine_->Stats().last_step_age < kStuck; }

 private:
  const std::string name_;
  std::unique_ptr<runtime::KvSourceDirectory> sources_;
  std::unique_ptr<runtime::DecodeEngine> engine_;
  DecodeServiceImpl service_;
};

void WorkerImpl::FillMetrics(common::MetricPage& page) const {
  const runtime::DecodeStats stats = engine_->Stats();
  const common::MetricPage::Labels model = {{"model", name_}};
  const auto with = [&](const char* key, const char* value) {
    common::MetricPage::Labels labels = model;
    labels[key] = value;
    return labels;
  };
  constexpr char kState[] = "ridgefill_decode_requests";
  constexpr char kStateHelp[] = "Requests by state";
  page.Gauge(kState, kStateHelp, stats.queued, with("state", "queued"));
  page.Gauge(kState, kStateHelp, stats.receiving, with("state", "receiving"));
  page.Gauge(kState, kStateHelp, stats.finishing, with("state", "finishing"));
  page.Gauge(kState, kStateHelp, stats.running, with("state", "running"));
  constexpr char kBlocks[] = "ridgefill_decode_blocks";
  constexpr char kBlocksHelp[] = "KV cache blocks by state; they add up to the pool";
  page.Gauge(kBlocks, kBlocksHelp, stats.blocks_free, with("state", "free"));
  page.Gauge(kBlocks, kBlocksHelp, stats.blocks_used, with("state", "used"));
  page.Gauge(kBlocks, kBlocksHelp, stats.blocks_cached, with("state", "cached"));
  page.Gauge("ridgefill_decode_blocks_capacity", "KV cache blocks in all", stats.blocks_total, model);
  constexpr char kRequests[] = "ridgefill_decode_requests_total";
  constexpr char kRequestsHelp[] =
      "Requests by outcome; cancelled ones include answers that the router ended at a stop string";
  page.Counter(kRequests, kRequestsHelp, stats.requests_ok, with("outcome", "ok"));
  page.Counter(kRequests, kRequestsHelp, stats.requests_failed, with("outcome", "failed"));
  page.Counter(kRequests, kRequestsHelp, stats.requests_cancelled, with("outcome", "cancelled"));
  page.Counter(kRequests, kRequestsHelp, stats.requests_rejected, with("outcome", "rejected"));
  page.Counter("ridgefill_decode_generated_tokens_total", "Tokens generated", stats.generated_tokens, model);
  page.Counter("ridgefill_decode_prompt_tokens_total", "Prompt rows received or run", stats.prompt_tokens,
               model);
  page.Counter("ridgefill_decode_filled_tokens_total", "Prompt rows whose late K and V came from the maps",
               stats.filled_tokens, model);
  page.Counter("ridgefill_decode_exact_tokens_total", "Prompt rows in the exact set", stats.exact_tokens,
               model);
  page.Counter("ridgefill_decode_fill_tokens_total", "Rows filled here, in wire form hidden", stats.fill_rows,
               model);
  page.Counter("ridgefill_decode_probe_tokens_total", "Rows run by probes", stats.probe_rows, model);
  page.Counter("ridgefill_decode_late_pass_tokens_total", "Rows run through the late layers here",
               stats.late_pass_rows, model);
  page.Counter("ridgefill_decode_steps_total", "Steps of the loop", stats.steps, model);
  page.Counter("ridgefill_decode_batch_tokens_total", "Rows of all decode batches", stats.decode_rows, model);
  constexpr char kTransfers[] = "ridgefill_decode_transfers_total";
  constexpr char kTransfersHelp[] = "Whole prompts received from prefill workers";
  page.Counter(kTransfers, kTransfersHelp, stats.transfers_kv, with("wire_form", "kv"));
  page.Counter(kTransfers, kTransfersHelp, stats.transfers_hidden, with("wire_form", "hidden"));
  page.Counter("ridgefill_decode_transfer_frames_total", "Frames received from prefill workers",
               stats.transfer_frames, model);
  page.Counter("ridgefill_decode_transfer_bytes_total", "Payload bytes received from prefill workers",
               stats.transfer_bytes, model);
  page.Gauge("ridgefill_decode_step_age_seconds", "Since the step loop last came round",
             absl::ToDoubleSeconds(stats.last_step_age), model);
}

// Shared with the engine's sink, which may outlive the wait for it.
struct WarmUpState {
  absl::Notification done;
  absl::Status status;
};

class WarmUpSink : public runtime::TokenSink {
 public:
  explicit WarmUpSink(std::shared_ptr<WarmUpState> state) : state_(std::move(state)) {}
  void OnEvent(runtime::DecodeEvent event) override {
    const auto* finished = std::get_if<runtime::FinishedEvent>(&event);
    if (finished == nullptr) return;
    state_->status = finished->status;
    state_->done.Notify();
  }

 private:
  std::shared_ptr<WarmUpState> state_;
};

// One small answer: kernels are picked, memory is touched, a broken model shows itself.
absl::Status WarmUp(runtime::DecodeEngine& engine) {
  const auto state = std::make_shared<WarmUpState>();
  runtime::DecodeCall call;
  call.request_id = "warm-up";
  call.tokens.assign(8, 0);
  call.decision.local = true;
  call.decision.reason = "WARM_UP";
  call.max_tokens = 2;
  call.deadline = absl::Now() + absl::Minutes(2);
  RF_RETURN_IF_ERROR(engine.Submit(std::move(call), std::make_unique<WarmUpSink>(state)).status());
  state->done.WaitForNotification();
  return base::WithContext(state->status, "warm-up of the decode engine");
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeWorker>> DecodeWorker::Create(const common::LoadedModel& model,
                                                                   const config::v1::DecodeConfig& config,
                                                                   const base::Clock& clock,
                                                                   runtime::PrefillEngine* local_prefill) {
  RF_ASSIGN_OR_RETURN(const transport::Transport* transport, transport::FindTransport(config.transport()));
  transport::Options connect;
  connect.receive_buffer_bytes = config.receive_buffer_mb() << 20;
  connect.max_message_mb = config.listen().max_message_mb();
  connect.local_engine = local_prefill;
  RF_ASSIGN_OR_RETURN(auto sources, transport->connect(connect));
  runtime::DecodeEngineOptions options;
  options.context_tokens = model.context_tokens;
  RF_RETURN_IF_ERROR(common::CheckKvMemory(model, config.kv_memory_mb()));
  options.cache_blocks = common::BlocksInMemory(model.model->config(), config.kv_memory_mb());
  options.max_running = config.max_running();
  options.max_queued = config.max_queued();
  options.queue_timeout = absl::Seconds(config.queue_timeout_seconds());
  options.piece_tokens = config.piece_tokens();
  options.eos_ids = model.tokenizer->stop_ids();
  RF_ASSIGN_OR_RETURN(auto engine, runtime::DecodeEngine::Create(*model.model, model.map_sets(), model.hello,
                                                                 sources.get(), clock, options));
  RF_RETURN_IF_ERROR(WarmUp(*engine));
  return std::make_unique<WorkerImpl>(model, std::move(sources), std::move(engine));
}

}  // namespace ridgefill::decode
