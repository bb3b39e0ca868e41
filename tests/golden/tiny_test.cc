// Tiny seeded checkpoints against transformers: every architecture and RoPE scaling, both containers, every
// backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/golden/figures.h"
#include "tests/golden/model_runner.h"

namespace ridgefill::golden {
namespace {

constexpr const char* kCheckpoints[] = {"llama",        "llama-untied", "llama-llama3",
                                        "llama-linear", "qwen2",        "qwen2-untied"};

struct TinyFigures {
  Forced forced;
  std::vector<int32_t> positions;
  std::vector<float> logits;  // [positions, vocab]
};

TinyFigures ReadTiny(const std::string& checkpoint) {
  auto file = formats::SafetensorsFile::Open(kGoldenFolder + checkpoint + ".safetensors");
  RF_CHECK(file.ok());
  TinyFigures f;
  f.forced = {ReadFigure<int32_t>(*file, "prompt"), ReadFigure<int32_t>(*file, "forced"),
              ReadFigure<float>(*file, "margin"), ReadFigure<float>(*file, "rms")};
  f.positions = ReadFigure<int32_t>(*file, "positions");
  f.logits = ReadFigure<float>(*file, "logits");
  return f;
}

std::string TestName(const std::string& name) {
  return absl::StrReplaceAll(name, {{"-", "_"}, {"/", "_"}, {".", "_"}});
}

// Logits of all rows, [rows, vocab]: prompt rows in the prompt phase, forced ones in the decode phase.
absl::StatusOr<std::vector<float>> RunForced(ModelRunner& runner, const Forced& forced) {
  const std::vector<int32_t> ids = forced.ids();
  const int64_t prompt = static_cast<int64_t>(forced.prompt.size()), all = static_cast<int64_t>(ids.size());
  RF_RETURN_IF_ERROR(runner.Embed(ids));
  RF_RETURN_IF_ERROR(runner.ForwardChunked({0, prompt}, /*chunk=*/96));
  RF_RETURN_IF_ERROR(runner.ForwardChunked({prompt, all}, /*chunk=*/16, kernels::Phase::kDecode));
  RF_ASSIGN_OR_RETURN(std::vector<float> logits, runner.Logits({0, prompt}));
  RF_ASSIGN_OR_RETURN(const std::vector<float> more, runner.Logits({prompt, all}, kernels::Phase::kDecode));
  logits.insert(logits.end(), more.begin(), more.end());
  return logits;
}

std::vector<float> Pick(absl::Span<const float> logits, absl::Span<const int32_t> rows, int64_t vocab) {
  std::vector<float> picked;
  for (int32_t row : rows) picked.insert(picked.end(), &logits[row * vocab], &logits[row * vocab] + vocab);
  return picked;
}

// --- reference: 1e-4
// ---------------------------------------------------------------------------------------------------

struct Checkpoint {
  std::string name, container;  // container: "" for the Hugging Face folder, ".gguf"
};

class TinyReference : public testing::TestWithParam<Checkpoint> {};

// Relative error of a row: rms of the difference over rms of the row.
TEST_P(TinyReference, LogitsAreThoseOfTransformers) {
  const TinyFigures f = ReadTiny(GetParam().name);
  auto runner = ModelRunner::New(kGoldenFolder + "tiny/" + GetParam().name + GetParam().container,
                                 kernels::MakeReferenceBackend({.round_kv = false}), /*max_tokens=*/300);
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto all = RunForced(**runner, f.forced);
  ASSERT_TRUE(all.ok()) << all.status();
  const size_t vocab = (*runner)->model().config().vocab;
  const std::vector<float> logits = Pick(*all, f.positions, vocab);
  double worst = 0;
  for (size_t i = 0; i < f.positions.size(); ++i) {
    const auto expected = absl::MakeConstSpan(f.logits).subspan(i * vocab, vocab);
    worst = std::max(
        worst, RmsError(absl::MakeConstSpan(logits).subspan(i * vocab, vocab), expected) / Rms(expected));
  }
  RecordProperty("worst_relative_error", absl::StrCat(worst));
  EXPECT_LE(worst, 1e-4);
}

std::vector<Checkpoint> AllCheckpoints() {
  std::vector<Checkpoint> all;
  for (const char* name : kCheckpoints) {
    all.push_back({name, ""});
    all.push_back({name, ".gguf"});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, TinyReference, testing::ValuesIn(AllCheckpoints()), [](const auto& info) {
  return TestName(info.param.name + (info.param.container.empty() ? "_hf" : "_gguf"));
});

// --- every backend: the rounding bound against plain fp32
// --------------------------------------------------------------------

class TinyBackend : public testing::TestWithParam<std::string> {};

TEST_P(TinyBackend, LogitsAndArgmaxAreWithinTheRoundingBound) {
  Agreement agreement;
  for (const char* name : kCheckpoints) {
    const TinyFigures f = ReadTiny(name);
    auto backend = MakeBackend(GetParam());
    ASSERT_TRUE(backend.ok()) << backend.status();
    auto runner = ModelRunner::New(kGoldenFolder + "tiny/" + name, std::move(*backend), /*max_tokens=*/300);
    ASSERT_TRUE(runner.ok()) << runner.status();
    const auto all = RunForced(**runner, f.forced);
    ASSERT_TRUE(all.ok()) << all.status();
    const int64_t vocab = (*runner)->model().config().vocab;
    const double bound =
        RoundingBound((*runner)->layers(), (*runner)->backend().capabilities().activation_dtype);
    const double error = RmsError(Pick(*all, f.positions, vocab), f.logits) / Rms(f.logits);
    EXPECT_LE(error, bound) << name;
    RecordProperty(TestName(name), absl::StrCat(error / bound));
    agreement.Add(f.forced, absl::MakeConstSpan(*all).subspan(f.forced.first_row() * vocab), bound);
  }
  EXPECT_EQ(agreement.clear_misses, 0);
  EXPECT_LE(agreement.misses * 200, agreement.positions);
}

INSTANTIATE_TEST_SUITE_P(All, TinyBackend, testing::ValuesIn(BackendNames()),
                         [](const auto& info) { return TestName(info.param); });

}  // namespace
}  // namespace ridgefill::golden
