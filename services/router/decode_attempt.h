// One try at a decode worker: the client side of Decode. Internal to services/router.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "ridgefill/v1/decode.grpc.pb.h"

namespace ridgefill::router {

struct AttemptOptions {
  v1::DecodeRequest request;
  absl::Time deadline;
  std::string trace_parent;
  // Called in order, one at a time, from gRPC's threads. `on_done` is the last one and always comes.
  std::function<void(v1::DecodeResponse&)> on_message;
  std::function<void(const grpc::Status&)> on_done;
};

// Thread-safe. Kept alive by gRPC until on_done has returned.
class DecodeAttempt : private grpc::ClientReadReactor<v1::DecodeResponse> {
 public:
  // The call begins with Run(), so that the owner can keep the attempt first.
  DecodeAttempt(v1::DecodeService::Stub& stub, AttemptOptions options);
  static void Run(const std::shared_ptr<DecodeAttempt>& attempt);
  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  v1::DecodeService::Stub& stub_;
  AttemptOptions options_;
  grpc::ClientContext context_;
  v1::DecodeResponse response_;
  std::shared_ptr<DecodeAttempt> self_;
};

}  // namespace ridgefill::router
