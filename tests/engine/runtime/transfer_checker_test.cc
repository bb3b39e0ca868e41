#include "engine/runtime/transfer_checker.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "engine/base/crc32c.h"
#include "engine/base/status.h"

namespace ridgefill::runtime {
namespace {

// 4 layers, split 2, 100 tokens with a tail of 20, 8 bytes of K and V a token, residual rows of 3 floats.
constexpr int64_t kTokens = 100, kTokenBytes = 8, kWidth = 3;

TransferChecker::Expectation Speed() {
  TransferChecker::Expectation e;
  e.decision.mode = ridge::Mode::kSpeed;
  e.decision.split = 2;
  e.decision.tail = 20;
  e.tokens = kTokens;
  e.layers = 4;
  e.hidden = kWidth;
  e.kv_token_bytes = kTokenBytes;
  return e;
}

KvFrame Kv(int layer_begin, int layer_end, int64_t begin, int64_t count) {
  KvFrame frame{.body = KvBody{layer_begin, layer_end, begin, count}};
  frame.payload.assign((layer_end - layer_begin) * count * kTokenBytes, 'k');
  return frame;
}

KvFrame Hidden(int layer, std::vector<int32_t> positions) {
  KvFrame frame;
  frame.payload.assign(positions.size() * kWidth * sizeof(float), 'h');
  frame.body = HiddenBody{layer, std::move(positions)};
  return frame;
}

std::vector<int32_t> Range(int32_t begin, int32_t end) {
  std::vector<int32_t> out;
  for (int32_t i = begin; i < end; ++i) out.push_back(i);
  return out;
}

using Stream = std::vector<KvFrame>;

// A faithful transfer in two chunks of 64; rows 0 and 70 are outliers.
Stream Faithful() {
  PlanBody plan;
  plan.plan = {.tokens = kTokens, .tail_begin = 80, .outliers = {0, 70}};
  Stream s = {Kv(0, 2, 0, 64),           Hidden(2, {0}),  Kv(2, 4, 0, 64), Kv(0, 2, 64, 36), Hidden(2, {70}),
              Hidden(2, Range(80, 100)), Kv(2, 4, 64, 16)};
  s.push_back({.body = plan});
  s.push_back({.body = SealedBody{kTokens}});
  return s;
}

// Numbers, checksums and seals what is there.
void Finish(Stream& stream) {
  uint32_t digest = 0;
  for (size_t i = 0; i < stream.size(); ++i) {
    KvFrame& frame = stream[i];
    frame.sequence = i;
    frame.crc32c = base::Crc32c(frame.payload);
    if (auto* sealed = std::get_if<SealedBody>(&frame.body)) {
      sealed->frames = i;
      sealed->digest = digest;
    }
    digest = ExtendDigest(digest, frame.crc32c);
  }
}

absl::Status Check(const TransferChecker::Expectation& expected, const Stream& stream,
                   const absl::Status& end = absl::OkStatus()) {
  TransferChecker checker(expected);
  for (const KvFrame& frame : stream) {
    absl::Status status = checker.Accept(frame);
    if (!status.ok()) return status;
  }
  return checker.AcceptEnd(end);
}

std::string ReasonOf(const absl::Status& status) {
  if (status.ok()) return "OK";
  const auto detail = base::GetErrorDetail(status);
  return detail ? detail->reason : status.ToString();
}

TEST(TransferCheckerTest, AcceptsAFaithfulTransfer) {
  Stream stream = Faithful();
  Finish(stream);
  TransferChecker checker(Speed());
  for (const KvFrame& frame : stream) {
    EXPECT_FALSE(checker.sealed());
    ASSERT_EQ(checker.Accept(frame), absl::OkStatus()) << frame.sequence;
  }
  EXPECT_TRUE(checker.sealed());
  EXPECT_EQ(checker.plan().plan.outliers, std::vector<int32_t>({0, 70}));
  EXPECT_TRUE(checker.AcceptEnd(absl::OkStatus()).ok());
}

// A lie of the peer: the frames are numbered, checksummed and sealed after the change.
struct Lie {
  std::string name, reason;
  std::function<void(Stream&)> change;
};
class LieTest : public testing::TestWithParam<Lie> {};

TEST_P(LieTest, IsDataLossByName) {
  Stream stream = Faithful();
  GetParam().change(stream);
  Finish(stream);
  const absl::Status status = Check(Speed(), stream);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(ReasonOf(status), GetParam().reason) << status;
}

PlanBody& PlanOf(Stream& s) { return std::get<PlanBody>(s[7].body); }
KvBody& KvOf(Stream& s, int i) { return std::get<KvBody>(s[i].body); }
HiddenBody& HiddenOf(Stream& s, int i) { return std::get<HiddenBody>(s[i].body); }
constexpr int64_t kHuge = int64_t{1} << 62;

const Lie kLies[] = {
    {"LayerBelowZero", "FRAME_LAYERS", [](Stream& s) { KvOf(s, 0).layer_begin = -1; }},
    {"LayerPastTheEnd", "FRAME_LAYERS", [](Stream& s) { KvOf(s, 2).layer_end = 5; }},
    {"NoLayers", "FRAME_LAYERS", [](Stream& s) { KvOf(s, 0).layer_end = 0; }},
    {"NegativeToken", "FRAME_TOKENS", [](Stream& s) { KvOf(s, 0).token_begin = -64; }},
    {"HugeToken", "FRAME_TOKENS", [](Stream& s) { KvOf(s, 0).token_begin = kHuge; }},
    {"HugeCount", "FRAME_TOKENS", [](Stream& s) { KvOf(s, 0).token_count = kHuge; }},
    {"NoTokens", "FRAME_TOKENS", [](Stream& s) { s[0] = Kv(0, 2, 0, 0); }},
    {"NegativeCount", "FRAME_TOKENS", [](Stream& s) { KvOf(s, 0).token_count = -1; }},
    {"Gap", "FRAME_TOKENS", [](Stream& s) { s[3] = Kv(0, 2, 65, 35); }},
    {"Overlap", "FRAME_TOKENS", [](Stream& s) { s[3] = Kv(0, 2, 63, 37); }},
    {"TwiceTheSameTokens", "FRAME_TOKENS", [](Stream& s) { s.insert(s.begin() + 1, Kv(0, 2, 0, 64)); }},
    {"PastThePrompt", "FRAME_TOKENS", [](Stream& s) { s[3] = Kv(0, 2, 64, 37); }},
    {"LateLayersPastTheTail", "FRAME_TOKENS", [](Stream& s) { s[6] = Kv(2, 4, 64, 17); }},
    {"LowerFrameReachesIntoLateLayers", "FRAME_TOKENS", [](Stream& s) { s[3] = Kv(0, 3, 64, 36); }},
    {"ShortPayload", "FRAME_SIZE", [](Stream& s) { s[0].payload.pop_back(); }},
    {"LongPayload", "FRAME_SIZE", [](Stream& s) { s[0].payload.push_back('x'); }},
    {"EmptyPayload", "FRAME_SIZE", [](Stream& s) { s[0].payload.clear(); }},
    {"HiddenOfAnotherLayer", "FRAME_LAYERS", [](Stream& s) { HiddenOf(s, 1).layer = 3; }},
    {"HiddenNegative", "FRAME_POSITIONS", [](Stream& s) { HiddenOf(s, 1).positions = {-1}; }},
    {"HiddenPastThePrompt", "FRAME_POSITIONS", [](Stream& s) { HiddenOf(s, 1).positions = {100}; }},
    {"HiddenEmpty", "FRAME_POSITIONS", [](Stream& s) { s[1] = Hidden(2, {}); }},
    {"HiddenDescends", "FRAME_POSITIONS",
     [](Stream& s) {
       s[4] = Hidden(2, {71, 70});
     }},
    {"HiddenTwiceInOneFrame", "FRAME_POSITIONS",
     [](Stream& s) {
       s[4] = Hidden(2, {70, 70});
     }},
    {"HiddenTwice", "FRAME_POSITIONS", [](Stream& s) { s.insert(s.begin() + 2, Hidden(2, {0})); }},
    {"HiddenSize", "FRAME_SIZE", [](Stream& s) { s[1].payload.resize(8); }},
    {"HiddenRowMissing", "TRANSFER_INCOMPLETE", [](Stream& s) { s[5] = Hidden(2, Range(81, 100)); }},
    {"HiddenRowNotInThePlan", "TRANSFER_INCOMPLETE",
     [](Stream& s) {
       s[4] = Hidden(2, {70, 71});
     }},
    {"AnotherHiddenRow", "TRANSFER_INCOMPLETE", [](Stream& s) { s[4] = Hidden(2, {71}); }},
    {"LowerKvMissing", "TRANSFER_INCOMPLETE", [](Stream& s) { s.erase(s.begin() + 3); }},
    {"LateKvMissing", "TRANSFER_INCOMPLETE", [](Stream& s) { s.erase(s.begin() + 6); }},
    {"OneLayerMissing", "TRANSFER_INCOMPLETE", [](Stream& s) { s[6] = Kv(2, 3, 64, 16); }},
    {"PlanTokens", "PLAN_MISMATCH", [](Stream& s) { PlanOf(s).plan.tokens = 99; }},
    {"PlanTail", "PLAN_MISMATCH", [](Stream& s) { PlanOf(s).plan.tail_begin = 79; }},
    {"PlanWithoutRowZero", "PLAN_MISMATCH", [](Stream& s) { PlanOf(s).plan.outliers = {70}; }},
    {"PlanOutlierInTheTail", "PLAN_MISMATCH",
     [](Stream& s) {
       PlanOf(s).plan.outliers = {0, 80};
     }},
    {"PlanNegativeOutlier", "PLAN_MISMATCH",
     [](Stream& s) {
       PlanOf(s).plan.outliers = {-1, 0};
     }},
    {"PlanOutlierTwice", "PLAN_MISMATCH",
     [](Stream& s) {
       PlanOf(s).plan.outliers = {0, 70, 70};
     }},
    {"PlanSelectsInSpeed", "PLAN_MISMATCH", [](Stream& s) { PlanOf(s).plan.selected = {3}; }},
    {"PlanWithPayload", "FRAME_SIZE", [](Stream& s) { s[7].payload = "x"; }},
    {"TwoPlans", "FRAME_ORDER", [](Stream& s) { s.insert(s.begin() + 7, s[7]); }},
    {"NoPlan", "FRAME_ORDER", [](Stream& s) { s.erase(s.begin() + 7); }},
    {"KvAfterThePlan", "FRAME_ORDER", [](Stream& s) { s.insert(s.begin() + 8, Kv(0, 1, 0, 1)); }},
    {"HiddenAfterThePlan", "FRAME_ORDER", [](Stream& s) { s.insert(s.begin() + 8, Hidden(2, {1})); }},
    {"FrameAfterSealed", "FRAME_ORDER", [](Stream& s) { s.push_back(Kv(0, 1, 0, 1)); }},
    {"SealedTokens", "SEAL_MISMATCH", [](Stream& s) { std::get<SealedBody>(s[8].body).tokens = 1; }},
    {"NotSealed", "TRANSFER_NOT_SEALED", [](Stream& s) { s.pop_back(); }},
    {"NothingAtAll", "TRANSFER_NOT_SEALED", [](Stream& s) { s.clear(); }},
};
INSTANTIATE_TEST_SUITE_P(Lies, LieTest, testing::ValuesIn(kLies),
                         [](const auto& info) { return info.param.name; });

// Rows 32 to 63 selected, as their share of the bulk allows.
TEST(TransferCheckerTest, QualitySelectsWithinItsShare) {
  TransferChecker::Expectation quality = Speed();
  quality.decision.mode = ridge::Mode::kQuality;
  quality.decision.share = 0.4f;  // of 80
  Stream stream = Faithful();
  PlanOf(stream).plan.selected = Range(32, 64);
  Finish(stream);
  EXPECT_EQ(ReasonOf(Check(quality, stream)), "TRANSFER_INCOMPLETE") << "selected rows come as hidden rows";
  stream.insert(stream.begin() + 7, Hidden(2, Range(32, 64)));
  Finish(stream);
  EXPECT_EQ(Check(quality, stream), absl::OkStatus());
  EXPECT_EQ(ReasonOf(Check(Speed(), stream)), "PLAN_MISMATCH");
  quality.decision.share = 0.38f;
  EXPECT_EQ(ReasonOf(Check(quality, stream)), "PLAN_MISMATCH") << "31 rows are promised at most";
  quality.decision.share = 1.0f;
  for (const std::vector<int32_t>& rows :
       {std::vector<int32_t>{70}, std::vector<int32_t>{80}, std::vector<int32_t>{-1, 3},
        std::vector<int32_t>{4, 3}, std::vector<int32_t>{3, 3}}) {
    std::get<PlanBody>(stream[8].body).plan.selected = rows;
    Finish(stream);
    EXPECT_EQ(ReasonOf(Check(quality, stream)), "PLAN_MISMATCH") << rows.front();
  }
}

// A broken transport: the frames are changed after they were numbered and sealed.
struct Damage {
  std::string name, reason;
  std::function<void(Stream&)> change;
};
class DamageTest : public testing::TestWithParam<Damage> {};

TEST_P(DamageTest, IsDataLossByName) {
  Stream stream = Faithful();
  Finish(stream);
  GetParam().change(stream);
  const absl::Status status = Check(Speed(), stream);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(ReasonOf(status), GetParam().reason) << status;
}

const Damage kDamages[] = {
    {"Dropped", "FRAME_SEQUENCE", [](Stream& s) { s.erase(s.begin() + 4); }},
    {"Duplicated", "FRAME_SEQUENCE", [](Stream& s) { s.insert(s.begin() + 4, s[4]); }},
    {"Reordered", "FRAME_SEQUENCE", [](Stream& s) { std::swap(s[1], s[2]); }},
    {"OneBit", "FRAME_CHECKSUM", [](Stream& s) { s[2].payload[77] ^= 1; }},
    {"Truncated", "FRAME_CHECKSUM", [](Stream& s) { s[2].payload.resize(5); }},
    {"AnotherChecksum", "FRAME_CHECKSUM", [](Stream& s) { s[2].crc32c ^= 1; }},
    {"AnotherDigest", "SEAL_MISMATCH", [](Stream& s) { std::get<SealedBody>(s[8].body).digest ^= 1; }},
    {"AnotherCount", "SEAL_MISMATCH", [](Stream& s) { std::get<SealedBody>(s[8].body).frames = 7; }},
    {"PayloadSwappedWithItsChecksum", "SEAL_MISMATCH",
     [](Stream& s) {
       s[2].payload[0] ^= 1;
       s[2].crc32c = base::Crc32c(s[2].payload);
     }},
};
INSTANTIATE_TEST_SUITE_P(Damages, DamageTest, testing::ValuesIn(kDamages),
                         [](const auto& info) { return info.param.name; });

// Wire form `hidden`: the decode worker fills.
TransferChecker::Expectation HiddenSpeed() {
  TransferChecker::Expectation e = Speed();
  e.decision.wire_form = ridge::WireForm::kHidden;
  return e;
}

TransferChecker::Expectation HiddenQuality() {
  TransferChecker::Expectation e = HiddenSpeed();
  e.decision.mode = ridge::Mode::kQuality;
  e.decision.share = 0.4f;
  return e;
}

KvFrame Scores(int64_t tokens) {
  KvFrame frame{.body = ScoresBody{tokens}};
  frame.payload.assign(tokens * sizeof(float), 's');
  return frame;
}

Stream FaithfulHidden(bool with_scores) {
  PlanBody plan;
  plan.plan = {.tokens = kTokens, .tail_begin = 80};
  Stream s = {Kv(0, 2, 0, 64), Hidden(2, Range(0, 64)), Kv(0, 2, 64, 36), Hidden(2, Range(64, 100))};
  if (with_scores) s.push_back(Scores(kTokens));
  s.push_back({.body = plan});
  s.push_back({.body = SealedBody{kTokens}});
  return s;
}

TEST(HiddenFormTest, AFaithfulTransferPasses) {
  Stream plain = FaithfulHidden(false), scored = FaithfulHidden(true);
  Finish(plain);
  Finish(scored);
  EXPECT_EQ(Check(HiddenSpeed(), plain), absl::OkStatus());
  EXPECT_EQ(Check(HiddenQuality(), scored), absl::OkStatus());
  TransferChecker::Expectation probe = HiddenQuality();
  probe.decision.selector = ridge::Selector::kProbe;
  EXPECT_EQ(Check(probe, plain), absl::OkStatus()) << "a probe takes its own scores";
  EXPECT_EQ(ReasonOf(Check(Speed(), plain)), "PLAN_MISMATCH") << "not what `kv` promises";
  Stream kv = Faithful();
  Finish(kv);
  EXPECT_EQ(ReasonOf(Check(HiddenSpeed(), kv)), "FRAME_TOKENS");
}

class HiddenLieTest : public testing::TestWithParam<Lie> {};

TEST_P(HiddenLieTest, IsDataLossByName) {
  Stream stream = FaithfulHidden(true);
  GetParam().change(stream);
  Finish(stream);
  const absl::Status status = Check(HiddenQuality(), stream);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(ReasonOf(status), GetParam().reason) << status;
}

PlanBody& HiddenPlanOf(Stream& s) { return std::get<PlanBody>(s[5].body); }
const Lie kHiddenLies[] = {
    {"FilledKv", "FRAME_TOKENS", [](Stream& s) { s.insert(s.begin() + 2, Kv(2, 4, 0, 64)); }},
    {"FilledKvOfOneLayer", "FRAME_TOKENS", [](Stream& s) { s.insert(s.begin() + 4, Kv(3, 4, 0, 1)); }},
    {"LowerFrameReachesIntoLateLayers", "FRAME_TOKENS", [](Stream& s) { s[0] = Kv(0, 3, 0, 64); }},
    {"BulkRowMissing", "TRANSFER_INCOMPLETE", [](Stream& s) { s[1] = Hidden(2, Range(1, 64)); }},
    {"TailRowMissing", "TRANSFER_INCOMPLETE", [](Stream& s) { s[3] = Hidden(2, Range(64, 99)); }},
    {"RowTwice", "FRAME_POSITIONS", [](Stream& s) { s[3] = Hidden(2, Range(63, 100)); }},
    {"RowOfAnotherLayer", "FRAME_LAYERS", [](Stream& s) { HiddenOf(s, 1).layer = 1; }},
    {"LowerKvMissing", "TRANSFER_INCOMPLETE", [](Stream& s) { s.erase(s.begin() + 2); }},
    {"ScoresMissing", "TRANSFER_INCOMPLETE", [](Stream& s) { s.erase(s.begin() + 4); }},
    {"ScoresTwice", "FRAME_SCORES", [](Stream& s) { s.insert(s.begin() + 4, Scores(kTokens)); }},
    {"ScoresShort", "FRAME_SIZE", [](Stream& s) { s[4].payload.pop_back(); }},
    {"ScoresOfFewerTokens", "FRAME_SIZE", [](Stream& s) { s[4] = Scores(99); }},
    {"ScoresOfHugelyMany", "FRAME_SIZE",
     [](Stream& s) { std::get<ScoresBody>(s[4].body).tokens = (int64_t{1} << 62) + kTokens; }},
    {"ScoresAfterThePlan", "FRAME_ORDER", [](Stream& s) { s.insert(s.begin() + 6, Scores(kTokens)); }},
    {"PlanWithOutliers", "PLAN_MISMATCH", [](Stream& s) { HiddenPlanOf(s).plan.outliers = {0}; }},
    {"PlanWithSelected", "PLAN_MISMATCH", [](Stream& s) { HiddenPlanOf(s).plan.selected = {40}; }},
    {"PlanTail", "PLAN_MISMATCH", [](Stream& s) { HiddenPlanOf(s).plan.tail_begin = 0; }},
};
INSTANTIATE_TEST_SUITE_P(Lies, HiddenLieTest, testing::ValuesIn(kHiddenLies),
                         [](const auto& info) { return info.param.name; });

TEST(HiddenFormTest, ScoresThatNobodyAskedForAreLoss) {
  Stream stream = FaithfulHidden(true);
  Finish(stream);
  EXPECT_EQ(ReasonOf(Check(HiddenSpeed(), stream)), "FRAME_SCORES");
  Stream kv = Faithful();
  kv.insert(kv.begin() + 7, Scores(kTokens));
  Finish(kv);
  EXPECT_EQ(ReasonOf(Check(Speed(), kv)), "FRAME_SCORES");
}

TEST(TransferCheckerTest, ExactWithTheLatePassOnDecodeSendsEveryHiddenRow) {
  TransferChecker::Expectation exact = Speed();
  exact.decision.mode = ridge::Mode::kExact;
  PlanBody plan;
  plan.plan.tokens = kTokens;
  Stream stream = {Kv(0, 2, 0, 100), Hidden(2, Range(0, 100)), {.body = plan}, {.body = SealedBody{kTokens}}};
  Finish(stream);
  EXPECT_EQ(Check(exact, stream), absl::OkStatus());
  stream[0] = Kv(0, 4, 0, 100);
  Finish(stream);
  EXPECT_EQ(ReasonOf(Check(exact, stream)), "FRAME_TOKENS") << "late layers are computed on decode";
}

TEST(TransferCheckerTest, ExactWithTheLatePassOnPrefillSendsTheLastRowOnly) {
  TransferChecker::Expectation exact = Speed();
  exact.decision.mode = ridge::Mode::kExact;
  exact.decision.late_pass = ridge::LatePassAt::kPrefill;
  PlanBody plan;
  plan.plan.tokens = kTokens;
  Stream stream = {Kv(0, 4, 0, 100), Hidden(4, {99}), {.body = plan}, {.body = SealedBody{kTokens}}};
  Finish(stream);
  EXPECT_EQ(Check(exact, stream), absl::OkStatus());
  stream[1] = Hidden(4, {98});
  Finish(stream);
  EXPECT_EQ(ReasonOf(Check(exact, stream)), "TRANSFER_INCOMPLETE");
}

TEST(TransferCheckerTest, ABrokenStreamIsUnavailableAndThePeersOwnErrorIsKept) {
  Stream stream = Faithful();
  Finish(stream);
  stream.resize(4);
  for (const absl::Status& end : {absl::UnavailableError("reset"), absl::CancelledError("gone"),
                                  absl::UnknownError("?"), absl::AbortedError("x")}) {
    const absl::Status status = Check(Speed(), stream, end);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ReasonOf(status), "PREFILL_LOST");
  }
  const absl::Status full = base::Error(absl::StatusCode::kResourceExhausted, "PREFILL_QUEUE_FULL", "full");
  EXPECT_EQ(ReasonOf(Check(Speed(), {}, full)), "PREFILL_QUEUE_FULL");
  EXPECT_EQ(Check(Speed(), {}, full).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Check(Speed(), stream, absl::DeadlineExceededError("late")).code(),
            absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace ridgefill::runtime
