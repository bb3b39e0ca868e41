#include "services/common/status.h"

#include <gmock/gmock.h>

#include "engine/base/status.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace ridgefill::common {
namespace {

google::rpc::Status Details(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  return details;
}

template <typename Detail>
int Find(const google::rpc::Status& status, Detail& out) {
  int found = 0;
  for (const auto& any : status.details()) found += any.UnpackTo(&out) ? 1 : 0;
  return found;
}

TEST(StatusTest, OkHasNoDetails) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(StatusTest, FieldErrorHasErrorInfoAndBadRequest) {
  const auto status =
      ToGrpcStatus(base::FieldError("sampling.top_p", "TOP_P_RANGE", "must be in (0, 1], got 3"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "sampling.top_p: must be in (0, 1], got 3");
  const auto details = Details(status);
  EXPECT_EQ(details.code(), 3);
  google::rpc::ErrorInfo info;
  ASSERT_EQ(Find(details, info), 1);
  EXPECT_EQ(info.reason(), "TOP_P_RANGE");
  EXPECT_EQ(info.domain(), "ridgefill.dev");
  google::rpc::BadRequest bad;
  ASSERT_EQ(Find(details, bad), 1);
  EXPECT_EQ(bad.field_violations(0).field(), "sampling.top_p");
  EXPECT_EQ(bad.field_violations(0).description(), "must be in (0, 1], got 3");
  google::rpc::RetryInfo retry;
  EXPECT_EQ(Find(details, retry), 0);
}

TEST(StatusTest, ResourceExhaustedSaysWhenToTryAgain) {
  google::rpc::RetryInfo retry;
  ASSERT_EQ(Find(Details(ToGrpcStatus(base::Error(absl::StatusCode::kResourceExhausted, "FULL", "full",
                                                  {{std::string(kRetryAfterMs), "2500"}}))),
                 retry),
            1);
  EXPECT_EQ(retry.retry_delay().seconds(), 2);
  EXPECT_EQ(retry.retry_delay().nanos(), 500'000'000);
  ASSERT_EQ(Find(Details(ToGrpcStatus(absl::ResourceExhaustedError("full"))), retry), 1);
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
}

TEST(StatusTest, OnlyWhatIsWorthTryingAgainHasRetryInfo) {
  google::rpc::RetryInfo retry;
  ASSERT_EQ(Find(Details(ToGrpcStatus(base::Error(absl::StatusCode::kUnavailable, "DRAINING", "x"))), retry),
            1);
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  // A peer's, passed on.
  const grpc::Status again =
      ToGrpcStatus(FromGrpcStatus(grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone")));
  EXPECT_EQ(Find(Details(again), retry), 1);
  for (const auto code :
       {absl::StatusCode::kInternal, absl::StatusCode::kCancelled, absl::StatusCode::kNotFound,
        absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kFailedPrecondition}) {
    EXPECT_EQ(Find(Details(ToGrpcStatus(absl::Status(code, "x"))), retry), 0) << CodeName(code);
  }
}

TEST(StatusTest, PlainErrorsGetTheirCodeAsReason) {
  google::rpc::ErrorInfo info;
  ASSERT_EQ(Find(Details(ToGrpcStatus(absl::InternalError("x"))), info), 1);
  EXPECT_EQ(info.reason(), "INTERNAL");
}

TEST(StatusTest, SurvivesTheWayThroughTwoServices) {
  for (const absl::Status& status : {base::Error(absl::StatusCode::kFailedPrecondition, "PEER_MODEL",
                                                 "other model", {{"mine", "a"}, {"peer", "b"}}),
                                     base::FieldError("mode", "MODE_UNKNOWN", "unknown value 9")}) {
    const absl::Status again = FromGrpcStatus(ToGrpcStatus(FromGrpcStatus(ToGrpcStatus(status))));
    EXPECT_EQ(again.code(), status.code());
    EXPECT_EQ(again.message(), status.message());
    const auto was = base::GetErrorDetail(status), is = base::GetErrorDetail(again);
    ASSERT_TRUE(is.has_value());
    EXPECT_EQ(is->reason, was->reason);
    EXPECT_EQ(is->field, was->field);
    EXPECT_EQ(is->metadata, was->metadata);
  }
}

TEST(StatusTest, ForeignDetailsAreLeftOut) {
  const grpc::Status garbage(grpc::StatusCode::UNAVAILABLE, "gone", "\xff\xff\xff");
  EXPECT_EQ(FromGrpcStatus(garbage).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(base::GetErrorDetail(FromGrpcStatus(garbage)).has_value());
  google::rpc::Status other;
  google::rpc::ErrorInfo info;
  info.set_reason("THEIRS");
  info.set_domain("example.com");
  other.add_details()->PackFrom(info);
  const grpc::Status foreign(grpc::StatusCode::UNAVAILABLE, "gone", other.SerializeAsString());
  EXPECT_FALSE(base::GetErrorDetail(FromGrpcStatus(foreign)).has_value());
}

}  // namespace
}  // namespace ridgefill::common
