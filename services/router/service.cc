#include "services/router/service.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "services/common/status.h"
#include "services/router/generate_call.h"

namespace ridgefill::router {
namespace {

// Runs `work` off gRPC's threads and finishes the call with its status; what was refused already (`checked`)
// takes no place there. Request and response live until then.
grpc::ServerUnaryReactor* InPool(WorkPool& pool, grpc::CallbackServerContext* context,
                                 const absl::Status& checked, std::function<absl::Status()> work) {
  auto* reactor = context->DefaultReactor();
  if (!checked.ok()) {
    reactor->Finish(common::ToGrpcStatus(checked));
    return reactor;
  }
  const auto unless_cancelled = [context, reactor, work = std::move(work)] {
    // Nobody waits for the answer of a call that was cancelled in the queue.
    const absl::Status status =
        context->IsCancelled()
            ? base::Error(absl::StatusCode::kCancelled, "CANCELLED", "the client cancelled the call")
            : work();
    reactor->Finish(common::ToGrpcStatus(status));
  };
  if (!pool.Post(unless_cancelled)) {
    reactor->Finish(
        common::ToGrpcStatus(base::Error(absl::StatusCode::kResourceExhausted, "ROUTER_BUSY",
                                         "too many calls wait for the tokenizer; try again later")));
  }
  return reactor;
}

void Describe(const Core& core, v1::ModelInfo& out) {
  out.set_name(core.limits.model);
  out.set_architecture(core.architecture);
  out.set_chat(core.chat);
  const auto decode = core.decode.Example();
  const int64_t worker_context = decode.has_value() ? decode->context_tokens : core.limits.context_tokens;
  out.set_context_tokens(std::min(core.limits.context_tokens, worker_context));
  out.add_modes(v1::FILL_MODE_AUTO);
  out.add_modes(v1::FILL_MODE_EXACT);
  // In wire form `hidden` the decode workers' maps will do.
  std::vector<MapFacts> maps = core.prefill.Maps();
  if (core.prefill.Example().has_value() && core.policy.wire_form == ridge::WireForm::kHidden) {
    for (const MapFacts& facts : core.decode.Maps()) {
      if (OfSplit(maps, facts.split).split == 0) maps.push_back(facts);
    }
  }
  if (maps.empty()) return;
  if (!core.policy.forbid_filled) {
    out.add_modes(v1::FILL_MODE_SPEED);
    out.add_modes(v1::FILL_MODE_QUALITY);
  }
  for (const MapFacts& facts : maps) {
    v1::MapSetInfo& set = *out.add_maps();
    set.set_split(facts.split);
    set.set_tail_default(core.policy.tail > 0 ? std::max(core.policy.tail, facts.tail_minimum)
                                              : facts.tail_default);
    set.set_tail_minimum(facts.tail_minimum);
    set.set_min_bulk(facts.min_bulk);
    set.set_digest(facts.digest);
  }
}

}  // namespace

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerationServiceImpl::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  return GenerateCall::Start(core_, context, request);
}

grpc::ServerUnaryReactor* GenerationServiceImpl::Tokenize(grpc::CallbackServerContext* context,
                                                          const v1::TokenizeRequest* request,
                                                          v1::TokenizeResponse* response) {
  const absl::Status checked = CheckInput(*request, core_.limits);
  return InPool(core_.pool, context, checked, [this, request, response]() -> absl::Status {
    RF_ASSIGN_OR_RETURN(const auto ids, EncodeInput(*request, *core_.tokenizer));
    response->mutable_ids()->Add(ids.begin(), ids.end());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* GenerationServiceImpl::Detokenize(grpc::CallbackServerContext* context,
                                                            const v1::DetokenizeRequest* request,
                                                            v1::DetokenizeResponse* response) {
  const absl::Status checked = CheckInput(*request, core_.limits);
  return InPool(core_.pool, context, checked, [this, request, response]() -> absl::Status {
    RF_RETURN_IF_ERROR(CheckIds("ids", request->ids(), core_.tokenizer->vocab_size()));
    RF_ASSIGN_OR_RETURN(*response->mutable_text(), core_.tokenizer->Decode(request->ids()));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* GenerationServiceImpl::ListModels(grpc::CallbackServerContext* context,
                                                            const v1::ListModelsRequest*,
                                                            v1::ListModelsResponse* response) {
  Describe(core_, *response->add_models());
  auto* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace ridgefill::router
