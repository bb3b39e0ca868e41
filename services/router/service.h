// The public gRPC service. Internal to services/router; router.h makes one.
#pragma once

#include "ridgefill/v1/generation.grpc.pb.h"
#include "services/router/core.h"

namespace ridgefill::router {

// Thread-safe. `core` must outlive the server that runs the service.
class GenerationServiceImpl final : public v1::GenerationService::CallbackService {
 public:
  explicit GenerationServiceImpl(Core& core) : core_(core) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;

 private:
  Core& core_;
};

}  // namespace ridgefill::router
