// gRPC in front of a DecodeEngine: converts, queues tokens towards the router, passes cancellation on. No
// logic of its own.
#pragma once

#include "engine/runtime/decode_engine.h"
#include "ridgefill/v1/decode.grpc.pb.h"

namespace ridgefill::decode {

// Thread-safe. `engine` must outlive the server that runs the service.
class DecodeServiceImpl final : public v1::DecodeService::CallbackService {
 public:
  // `description`: what DescribeDecode answers, except for the load, which is read at each call.
  DecodeServiceImpl(runtime::DecodeEngine& engine, v1::DescribeDecodeResponse description)
      : engine_(engine), description_(std::move(description)) {}

  grpc::ServerWriteReactor<v1::DecodeResponse>* Decode(grpc::CallbackServerContext* context,
                                                       const v1::DecodeRequest* request) override;
  grpc::ServerUnaryReactor* DescribeDecode(grpc::CallbackServerContext* context,
                                           const v1::DescribeDecodeRequest* request,
                                           v1::DescribeDecodeResponse* response) override;

 private:
  runtime::DecodeEngine& engine_;
  const v1::DescribeDecodeResponse description_;
};

}  // namespace ridgefill::decode
