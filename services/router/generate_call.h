// One Generate call, from admission to its last message. Internal to services/router.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "ridgefill/v1/generation.grpc.pb.h"
#include "services/router/answer.h"
#include "services/router/core.h"
#include "services/router/decode_attempt.h"
#include "services/router/outbox.h"
#include "services/router/request_timer.h"

namespace ridgefill::router {

// Exactly one thing drives a call at any time: admission, the work pool, an attempt at a decode worker, or
// the wait before the next one. Whichever it is ends the call through EndWith(); cancellation only tells it
// to. Kept alive by gRPC (self_, until OnDone) and by whoever drives it.
class GenerateCall : public grpc::ServerWriteReactor<v1::GenerateResponse>,
                     public std::enable_shared_from_this<GenerateCall> {
 public:
  static grpc::ServerWriteReactor<v1::GenerateResponse>* Start(Core& core,
                                                               grpc::CallbackServerContext* context,
                                                               const v1::GenerateRequest* request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // Where one attempt goes.
  struct Route {
    ridge::FillDecision decision;
    std::optional<Placement::Lease> prefill;  // none: decode prefills
    std::optional<Placement::Lease> decode;
    int64_t max_tokens = 0;
  };

  GenerateCall(Core& core, grpc::CallbackServerContext* context, const v1::GenerateRequest* request);

  void Begin();
  void OnAdmitted(absl::Status status);
  void Prepare();
  absl::Status EncodeAndCheck();
  void Attempt();
  absl::StatusOr<Route> ChooseRoute();
  absl::StatusOr<std::optional<Placement::Lease>> ChoosePrefill(MapsWanted maps, int split);
  v1::DecodeRequest MakeDecodeRequest(const Route& route) const;
  void OnMessage(v1::DecodeResponse& message);
  void TakeTokens(const v1::DecodeTokens& tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAttemptDone(const grpc::Status& status);
  bool RetryLocked(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ComposeEnd(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void EndWith(absl::Status status);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CancelledStatus() const;

  Core& core_;
  grpc::CallbackServerContext* const context_;
  const v1::GenerateRequest* const request_;  // gRPC's, until OnDone
  const std::string id_;
  const std::string trace_;
  absl::Time deadline_;
  std::shared_ptr<GenerateCall> self_;

  // Set by Begin() and Prepare(), before any attempt.
  ParsedRequest parsed_;
  std::vector<int32_t> tokens_;

  absl::Mutex mutex_;
  RequestTimer timer_ ABSL_GUARDED_BY(mutex_);
  RequestRecord record_ ABSL_GUARDED_BY(mutex_);
  std::optional<Answer> answer_ ABSL_GUARDED_BY(mutex_);
  Outbox outbox_ ABSL_GUARDED_BY(mutex_);
  v1::GenerateResponse response_ ABSL_GUARDED_BY(mutex_);  // the message being written
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  uint64_t ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  bool admitted_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;  // the client has or will have its first message: no retry
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;  // by a stop string
  bool decode_finished_ ABSL_GUARDED_BY(mutex_) = false;

  // Of the attempt under way.
  std::shared_ptr<DecodeAttempt> attempt_ ABSL_GUARDED_BY(mutex_);
  std::optional<Route> route_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> avoid_prefill_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> avoid_decode_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Alarm> retry_alarm_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ridgefill::router
