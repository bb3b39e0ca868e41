// A transport that drops, repeats, changes, reorders and cuts frames: each is a named error, no token comes
// out of it, and the engines go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/base/crc32c.h"
#include "tests/engine/runtime/trio.h"

namespace ridgefill::runtime {
namespace {

constexpr uint64_t kFaultAt = 5;

struct Case {
  std::string name;
  std::vector<std::string> reasons;  // any of them
  std::function<Fault()> fault;      // a fresh fault for each transfer
  std::optional<absl::Status> early_end;
};

// Changes frame kFaultAt only.
Fault Once(const std::function<std::vector<KvFrame>(KvFrame)>& change) {
  return [change](KvFrame frame) {
    if (frame.sequence == kFaultAt) return change(std::move(frame));
    return std::vector<KvFrame>{std::move(frame)};
  };
}

Fault CutFrom(uint64_t sequence) {
  return [sequence](KvFrame frame) {
    return frame.sequence >= sequence ? std::vector<KvFrame>{} : std::vector<KvFrame>{std::move(frame)};
  };
}

const Case kCases[] = {
    {"Drop", {"FRAME_SEQUENCE"}, [] { return Once([](const KvFrame&) { return std::vector<KvFrame>{}; }); }},
    {"Duplicate",
     {"FRAME_SEQUENCE"},
     [] { return Once([](const KvFrame& f) {
            return std::vector<KvFrame>{f, f};
          }); }},
    {"Corrupt",
     {"FRAME_CHECKSUM"},
     [] {
       return Once([](KvFrame f) {
         f.payload[f.payload.size() / 2] ^= 4;
         return std::vector<KvFrame>{std::move(f)};
       });
     }},
    {"CorruptWithItsChecksum",
     {"SEAL_MISMATCH"},
     [] {
       return Once([](KvFrame f) {
         f.payload[f.payload.size() / 2] ^= 4;
         f.crc32c = base::Crc32c(f.payload);
         return std::vector<KvFrame>{std::move(f)};
       });
     }},
    {"Truncate",
     {"FRAME_CHECKSUM"},
     [] {
       return Once([](KvFrame f) {
         f.payload.resize(f.payload.size() / 2);
         return std::vector<KvFrame>{std::move(f)};
       });
     }},
    {"MoveTokens",
     {"FRAME_TOKENS", "FRAME_POSITIONS"},
     [] {
       return Once([](KvFrame f) {
         if (auto* kv = std::get_if<KvBody>(&f.body)) kv->token_begin += 64;
         if (auto* hidden = std::get_if<HiddenBody>(&f.body)) hidden->positions[0] += 1000;
         return std::vector<KvFrame>{std::move(f)};
       });
     }},
    {"Reorder",
     {"FRAME_SEQUENCE"},
     [] {
       auto held = std::make_shared<std::optional<KvFrame>>();
       return [held](KvFrame f) {
         std::vector<KvFrame> out;
         if (f.sequence == kFaultAt) {
           *held = std::move(f);
           return out;
         }
         out.push_back(std::move(f));
         if (held->has_value()) out.push_back(*std::move(*held)), held->reset();
         return out;
       };
     }},
    {"EndsEarlyWithOk", {"TRANSFER_NOT_SEALED"}, [] { return CutFrom(4); }},
    {"WithoutSealed",
     {"TRANSFER_NOT_SEALED"},
     [] {
       return [](const KvFrame& f) {
         return std::holds_alternative<SealedBody>(f.body) ? std::vector<KvFrame>{} : std::vector<KvFrame>{f};
       };
     }},
    {"ConnectionLost",
     {"PREFILL_LOST"},
     [] { return CutFrom(6); },
     absl::UnavailableError("connection reset")},
    {"ConnectionLostAtOnce", {"PREFILL_LOST"}, [] { return CutFrom(0); }, absl::UnavailableError("refused")},
};

class FaultTest : public testing::TestWithParam<Case> {};

TEST_P(FaultTest, IsANamedErrorAndNoTokenComesOut) {
  const auto maps = Tiny().RandomMaps(2);
  const auto tokens = RandomTokens(3, 200, Tiny().vocab());
  for (const ridge::FillDecision& decision :
       {ExactOnDecode(2), ExactOnPrefill(), Speed(2, 32), Hidden(Speed(2, 32))}) {
    TrioOptions options;
    options.maps = {maps.get()};
    options.prefill.frame_bytes = 1 << 10;  // many frames
    options.transport.fault = GetParam().fault();
    options.transport.early_end = GetParam().early_end;
    Trio trio(options);
    const Submitted one = trio.Start(GreedyCall(tokens, decision, 4));
    const FinishedEvent end = one.out->Wait();
    const bool lost = GetParam().early_end.has_value();
    EXPECT_EQ(end.status.code(), lost ? absl::StatusCode::kUnavailable : absl::StatusCode::kDataLoss)
        << end.status;
    EXPECT_THAT(GetParam().reasons, testing::Contains(ReasonOf(end.status)));
    EXPECT_FALSE(one.out->started().has_value());
    EXPECT_TRUE(one.out->answer().tokens.empty());
    EXPECT_TRUE(trio.AllFree());
    // The engine is as good as before.
    EXPECT_TRUE(trio.Start(GreedyCall({1, 2, 3}, Local(), 2)).out->Wait().status.ok());
  }
}
INSTANTIATE_TEST_SUITE_P(Faults, FaultTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// A peer with another model is refused before any frame.
TEST(PeerTest, AnotherModelIsRefusedAtTheFirstMessage) {
  const auto clock = base::MakeSystemClock();
  Hello other = Tiny().MakeHello();
  other.model.weights_digest = "another checkpoint";
  auto prefill = PrefillEngine::Create(Tiny().model(), {}, other, *clock, {.context_tokens = 256});
  ASSERT_TRUE(prefill.ok());
  DirectDirectory directory(std::make_shared<DirectSource>(**prefill));
  auto decode = DecodeEngine::Create(Tiny().model(), {}, Tiny().MakeHello(), &directory, *clock,
                                     {.context_tokens = 256, .cache_blocks = 8});
  ASSERT_TRUE(decode.ok());
  const auto one = Submit(**decode, GreedyCall({1, 2, 3}, ExactOnPrefill(), 1));
  ASSERT_TRUE(one.ok());
  const absl::Status status = one->out->Wait().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "PEER_MODEL");
}

}  // namespace
}  // namespace ridgefill::runtime
