#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/strings/escaping.h"
#include "engine/base/bounded_queue.h"
#include "engine/base/clock.h"
#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/rng.h"
#include "engine/base/sha256.h"
#include "engine/base/status.h"

namespace ridgefill::base {
namespace {

TEST(Crc32c, MatchesPublishedVectors) {
  // RFC 3720, appendix B.4.
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
}

TEST(Crc32c, ContinuesAcrossPieces) {
  const std::string text = "a frame that arrives in three uneven pieces";
  EXPECT_EQ(Crc32c(text.substr(20), Crc32c(text.substr(3, 17), Crc32c(text.substr(0, 3)))), Crc32c(text));
}

TEST(Sha256, MatchesPublishedVectors) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Status, KeepsReasonFieldAndMetadata) {
  const absl::Status status = FieldError("sampling.top_p", "TOP_P_RANGE", "must be in (0, 1], got 3");
  const auto detail = GetErrorDetail(WithContext(status, "request 7"));
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->reason, "TOP_P_RANGE");
  EXPECT_EQ(detail->field, "sampling.top_p");
  EXPECT_THAT(detail->metadata, testing::ElementsAre(testing::Pair("field", "sampling.top_p")));
  EXPECT_FALSE(GetErrorDetail(absl::InternalError("plain")).has_value());
}

TEST(File, MissingFileIsNamed) {
  const auto file = MappedFile::Open("/nonexistent/model.gguf");
  EXPECT_EQ(file.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(file.status().message()), testing::HasSubstr("/nonexistent/model.gguf"));
  EXPECT_EQ(MappedFile::Open("/tmp").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(File, WritesWholeOrNotAtAll) {
  const std::string path = testing::TempDir() + "/base_test." + std::to_string(getpid());
  ASSERT_TRUE(WriteFileAtomically(path, "first").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "second").ok());
  EXPECT_EQ(*ReadFile(path), "second");
  EXPECT_FALSE(WriteFileAtomically("/nonexistent/folder/file", "x").ok());
}

TEST(BoundedQueue, RefusesWhenFullAndDrainsAfterClose) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  queue.Close();
  EXPECT_EQ(queue.Pop(absl::Seconds(1)), 1);
  EXPECT_EQ(queue.Pop(absl::Seconds(1)), 2);
  EXPECT_EQ(queue.Pop(absl::Seconds(10)), std::nullopt);
}

TEST(BoundedQueue, HandsOverBetweenThreads) {
  BoundedQueue<int> queue(4);
  std::thread producer([&] {
    for (int i = 0; i < 1000;) i += queue.TryPush(int{i}) ? 1 : 0;
  });
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(queue.Pop(absl::Seconds(10)), i);
  producer.join();
}

TEST(Rng, StreamIsAFunctionOfTheSeed) {
  Rng a(42), b(42), c(43);
  EXPECT_EQ(a.NextU64(), b.NextU64());
  EXPECT_NE(a.NextU64(), c.NextU64());
  for (int i = 0; i < 1000; ++i) EXPECT_LT(a.NextBelow(7), 7u);
}

TEST(ManualClock, MovesOnlyByHand) {
  ManualClock clock;
  const absl::Duration start = clock.Monotonic();
  clock.Advance(absl::Milliseconds(3));
  EXPECT_EQ(clock.Monotonic() - start, absl::Milliseconds(3));
}

}  // namespace
}  // namespace ridgefill::base
