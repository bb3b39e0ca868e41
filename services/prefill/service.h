// gRPC in front of a PrefillEngine: converts, queues frames towards the peer, passes cancellation on. No
// logic of its own.
#pragma once

#include "engine/runtime/prefill_engine.h"
#include "ridgefill/v1/prefill.grpc.pb.h"

namespace ridgefill::prefill {

struct PrefillServiceOptions {
  int64_t sink_buffer_bytes = 32 << 20;  // frames of one transfer that may wait for a slow peer
};

// Thread-safe. `engine` must outlive the server that runs the service.
class PrefillServiceImpl final : public v1::PrefillService::CallbackService {
 public:
  // `description`: what DescribePrefill answers, except for the load, which is read at each call.
  PrefillServiceImpl(runtime::PrefillEngine& engine, v1::DescribePrefillResponse description,
                     const PrefillServiceOptions& options)
      : engine_(engine), description_(std::move(description)), options_(options) {}

  grpc::ServerWriteReactor<v1::PrefillResponse>* Prefill(grpc::CallbackServerContext* context,
                                                         const v1::PrefillRequest* request) override;
  grpc::ServerUnaryReactor* DescribePrefill(grpc::CallbackServerContext* context,
                                            const v1::DescribePrefillRequest* request,
                                            v1::DescribePrefillResponse* response) override;

 private:
  runtime::PrefillEngine& engine_;
  const v1::DescribePrefillResponse description_;
  const PrefillServiceOptions options_;
};

}  // namespace ridgefill::prefill
