// ridgefill-decode: finishes prompts over the KV cache of prefill workers and generates.
#include <cstdlib>

#include "engine/base/status.h"
#include "services/common/loaded_model.h"
#include "services/common/model_files.h"
#include "services/common/monitoring.h"
#include "services/common/program.h"
#include "services/decode/worker.h"

namespace ridgefill {
namespace {

constexpr char kDescription[] =
    "ridgefill-decode: pulls the KV cache of a prompt from the prefill worker that the router chose, runs "
    "the exact rows through the late layers and generates, many requests together. Ready once a first "
    "answer has been generated; SIGTERM finishes what runs.";

absl::StatusOr<common::LoadedModel> Load(const config::v1::DecodeConfig& config, const std::string& home) {
  common::LoadModelOptions options;
  options.home = home;
  options.source = config.source();
  options.backend = config.backend();
  options.context_tokens = config.context_tokens();
  options.kv_memory_mb = config.kv_memory_mb();
  return common::LoadModel(options);
}

absl::Status Run(const config::v1::DecodeConfig& config, const std::string& home) {
  const auto clock = base::MakeSystemClock();
  RF_ASSIGN_OR_RETURN(const common::LoadedModel model, Load(config, home));
  RF_ASSIGN_OR_RETURN(const auto worker,
                      decode::DecodeWorker::Create(model, config, *clock, /*local_prefill=*/nullptr));
  const common::PageCollectable page([&](common::MetricPage& out) { worker->FillMetrics(out); });
  return common::Serve(config.listen(), {&worker->service(),
                                         decode::kServiceName,
                                         {&page},
                                         [&] { return worker->live(); },
                                         [&](absl::Time deadline) { worker->engine().Drain(deadline); }});
}

}  // namespace
}  // namespace ridgefill

int main(int argc, char** argv) {
  using namespace ridgefill;
  return common::ProgramMain(argc, argv, "ridgefill-decode", kDescription,
                             common::HomeFolder(std::getenv("RIDGEFILL_HOME"), std::getenv("HOME")), &Run);
}
