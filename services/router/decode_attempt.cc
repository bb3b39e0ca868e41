#include "services/router/decode_attempt.h"

#include <utility>

#include "services/common/call_context.h"

namespace ridgefill::router {

DecodeAttempt::DecodeAttempt(v1::DecodeService::Stub& stub, AttemptOptions options)
    : stub_(stub), options_(std::move(options)) {
  common::PassOn(options_.deadline, options_.trace_parent, context_);
}

void DecodeAttempt::Run(const std::shared_ptr<DecodeAttempt>& attempt) {
  attempt->self_ = attempt;
  attempt->stub_.async()->Decode(&attempt->context_, &attempt->options_.request, attempt.get());
  attempt->StartRead(&attempt->response_);
  attempt->StartCall();
}

void DecodeAttempt::OnReadDone(bool ok) {
  if (!ok) return;  // OnDone says why
  options_.on_message(response_);
  StartRead(&response_);
}

void DecodeAttempt::OnDone(const grpc::Status& status) {
  options_.on_done(status);
  options_.on_message = nullptr;  // they may hold the owner, and the owner this
  options_.on_done = nullptr;
  const std::shared_ptr<DecodeAttempt> last = std::move(self_);
}

}  // namespace ridgefill::router
