// ridgefill-prefill: runs prompts and streams their KV cache to decode workers.
#include <cstdlib>

#include "engine/base/status.h"
#include "services/common/loaded_model.h"
#include "services/common/model_files.h"
#include "services/common/monitoring.h"
#include "services/common/program.h"
#include "services/prefill/worker.h"

namespace ridgefill {
namespace {

constexpr char kDescription[] =
    "ridgefill-prefill: runs prompts (all rows through the lower layers, a ridge fill of the late layers' "
    "K and V) and streams the cache to decode workers. Ready once a first prompt has gone through; "
    "SIGTERM finishes what runs.";

absl::StatusOr<common::LoadedModel> Load(const config::v1::PrefillConfig& config, const std::string& home) {
  common::LoadModelOptions options;
  options.home = home;
  options.source = config.source();
  options.backend = config.backend();
  options.lower_layers_only = config.lower_layers_only();
  options.for_decode = false;
  options.context_tokens = config.context_tokens();
  options.kv_memory_mb = config.kv_memory_mb();
  options.kv_cache_contexts = config.kv_memory_mb() > 0 ? 0 : 2;
  return common::LoadModel(options);
}

absl::Status Run(const config::v1::PrefillConfig& config, const std::string& home) {
  const auto clock = base::MakeSystemClock();
  RF_ASSIGN_OR_RETURN(const common::LoadedModel model, Load(config, home));
  RF_ASSIGN_OR_RETURN(const auto worker, prefill::PrefillWorker::Create(model, config, *clock));
  const common::PageCollectable page([&](common::MetricPage& out) { worker->FillMetrics(out); });
  return common::Serve(config.listen(), {&worker->service(),
                                         prefill::kServiceName,
                                         {&page},
                                         [&] { return worker->live(); },
                                         [&](absl::Time deadline) { worker->engine().Drain(deadline); }});
}

}  // namespace
}  // namespace ridgefill

int main(int argc, char** argv) {
  using namespace ridgefill;
  return common::ProgramMain(argc, argv, "ridgefill-prefill", kDescription,
                             common::HomeFolder(std::getenv("RIDGEFILL_HOME"), std::getenv("HOME")), &Run);
}
