// ridgefill-router: the public API in front of prefill and decode workers.
#include <cstdlib>

#include "engine/base/status.h"
#include "services/common/channel.h"
#include "services/common/loaded_model.h"
#include "services/common/model_files.h"
#include "services/common/program.h"
#include "services/router/router.h"

namespace ridgefill {
namespace {

constexpr char kDescription[] =
    "ridgefill-router: the public gRPC API. Checks requests, applies the chat template, tokenizes, "
    "decides how exactly each prompt is prefilled, places it on a prefill and a decode worker and streams "
    "the answer. Reads only the tokenizer of the model. SIGTERM finishes what runs.";

std::vector<router::WorkerAddress> ConnectAll(
    const google::protobuf::RepeatedPtrField<std::string>& addresses, int max_message_mb) {
  std::vector<router::WorkerAddress> out;
  for (const auto& address : addresses) out.push_back({address, common::ConnectTo(address, max_message_mb)});
  return out;
}

absl::Status Run(const config::v1::RouterConfig& config, const std::string& home) {
  const auto clock = base::MakeSystemClock();
  RF_ASSIGN_OR_RETURN(const common::OpenedModel model, common::OpenModel(home, config.source()));
  router::RouterOptions options;
  options.config = config;
  options.prefill = ConnectAll(config.prefill_workers(), config.listen().max_message_mb());
  options.decode = ConnectAll(config.decode_workers(), config.listen().max_message_mb());
  options.model = model.name;
  options.identity = model.identity;
  options.vocab_size = model.source->config().vocab;
  options.context_tokens = model.source->config().context;
  options.tokenizer = model.tokenizer.get();
  options.clock = clock.get();
  const auto router = router::Router::Create(options);
  return common::Serve(config.listen(), {&router->service(), router::kServiceName, router->metrics(),
                                         [&] { return router->live(); },
                                         [&](absl::Time deadline) { router->Drain(deadline); }});
}

}  // namespace
}  // namespace ridgefill

int main(int argc, char** argv) {
  using namespace ridgefill;
  return common::ProgramMain(argc, argv, "ridgefill-router", kDescription,
                             common::HomeFolder(std::getenv("RIDGEFILL_HOME"), std::getenv("HOME")), &Run);
}
