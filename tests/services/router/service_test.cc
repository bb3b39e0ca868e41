// The service over a router without workers: what it does before and while a call waits for the tokenizer.
#include "services/router/service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "engine/base/status.h"
#include "services/common/status.h"

namespace ridgefill::router {
namespace {

class ServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    tokenizer_ = *tokenizer::Tokenizer::FromHuggingFace(RIDGEFILL_SOURCE_DIR "/tests/data/golden/tiny/llama");
    core_.tokenizer = tokenizer_.get();
    core_.limits = {"tiny", 320, 2048, 1000};
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::GenerationService::NewStub(server_->InProcessChannel({}));
  }
  void TearDown() override {
    Release();
    server_->Shutdown();
  }
  // Both threads of the pool wait until Release().
  void OccupyPool() {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(core_.pool.Post([this] { released_.WaitForNotification(); }));
  }
  void Release() {
    if (!released_.HasBeenNotified()) released_.Notify();
  }
  static std::string ReasonOf(const grpc::Status& status) {
    const auto detail = base::GetErrorDetail(common::FromGrpcStatus(status));
    return detail.has_value() ? detail->reason : status.error_message();
  }
  static void SetDeadline(grpc::ClientContext& context, absl::Duration from_now) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + from_now));
  }

  std::unique_ptr<base::Clock> clock_ = base::MakeSystemClock();
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  absl::Notification released_;
  Core core_{"tiny", {}, {"none:1"}, AdmissionOptions{}, *clock_};
  GenerationServiceImpl service_{core_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
};

TEST_F(ServiceTest, WhatIsTooLongIsRefusedWithoutWaitingForTheTokenizer) {
  OccupyPool();
  {
    grpc::ClientContext context;
    SetDeadline(context, absl::Seconds(20));
    v1::TokenizeRequest request;
    request.set_text(std::string(1001, 'a'));
    v1::TokenizeResponse response;
    EXPECT_EQ(ReasonOf(stub_->Tokenize(&context, request, &response)), "PROMPT_TOO_LONG");
  }
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(20));
  v1::DetokenizeRequest request;
  request.mutable_ids()->Resize(1001, 5);
  v1::DetokenizeResponse response;
  EXPECT_EQ(ReasonOf(stub_->Detokenize(&context, request, &response)), "TOO_MANY_IDS");
}

TEST_F(ServiceTest, TokenizesWhatFits) {
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text(std::string(1000, 'a'));
  v1::TokenizeResponse response;
  ASSERT_TRUE(stub_->Tokenize(&context, request, &response).ok());
  EXPECT_GT(response.ids_size(), 0);
}

TEST_F(ServiceTest, ACallCancelledWhileItWaitsIsNotTokenized) {
  OccupyPool();
  testing::internal::CaptureStderr();  // the request's log line
  grpc::ClientContext context;
  SetDeadline(context, absl::Milliseconds(200));
  v1::GenerateRequest request;
  request.set_text("hello");
  auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse message;
  EXPECT_FALSE(reader->Read(&message));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  absl::SleepFor(absl::Milliseconds(200));  // the server learns of it by itself
  Release();
  while (core_.admission.in_flight() > 0) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("\"prompt_tokens\":0,"));
}

}  // namespace
}  // namespace ridgefill::router
