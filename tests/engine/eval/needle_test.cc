// Needles with a real tokenizer: right text, right place, right length, the same every time.
#include "engine/eval/needle.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/file.h"
#include "engine/base/status.h"
#include "tests/engine/tokenizer/test_data.h"

namespace ridgefill::eval {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

class NeedleTest : public testing::TestWithParam<std::tuple<Task, Evidence>> {
 protected:
  static void SetUpTestSuite() {
    tokenizer_ = tokenizer::LoadTokenizer("smollm2").release();
    text_ = new std::string(base::ReadFile("tests/data/corpus/heldout/katrine.txt").value());
  }
  static void TearDownTestSuite() {
    delete tokenizer_;
    delete text_;
  }

  static NeedleOptions Options(int64_t length = 1024, int64_t tail = 256) {
    NeedleOptions options;
    std::tie(options.task, options.evidence) = GetParam();
    options.length = length;
    options.tail = tail;
    options.items = 6;
    return options;
  }
  static std::vector<NeedleItem> Make(const NeedleOptions& options) {
    auto items = MakeNeedles(*tokenizer_, *text_, options);
    EXPECT_TRUE(items.ok()) << items.status();
    return items.ok() ? *std::move(items) : std::vector<NeedleItem>();
  }
  static std::string Text(const NeedleItem& item, const TokenSpan& span) {
    return tokenizer_
        ->Decode(absl::MakeConstSpan(item.ids).subspan(span.begin, span.end - span.begin),
                 {.skip_special = false})
        .value();
  }
  static std::string Prompt(const NeedleItem& item) { return Text(item, {0, item.prompt_tokens}); }

  static tokenizer::Tokenizer* tokenizer_;
  static std::string* text_;
};
tokenizer::Tokenizer* NeedleTest::tokenizer_ = nullptr;
std::string* NeedleTest::text_ = nullptr;

TEST_P(NeedleTest, LengthsAreAsAskedFor) {
  for (const int64_t length : {1024, 4096}) {
    for (const NeedleItem& item : Make(Options(length))) {
      EXPECT_NEAR(static_cast<int64_t>(item.ids.size()), length, kLengthSlack);
    }
  }
}

TEST_P(NeedleTest, EvidenceLiesInItsRegion) {
  const NeedleOptions options = Options();
  for (const NeedleItem& item : Make(options)) {
    ASSERT_FALSE(item.evidence.empty());
    const int64_t tail_begin = item.prompt_tokens - options.tail;
    int64_t last_end = 0;
    for (const TokenSpan& span : item.evidence) {
      EXPECT_GE(span.begin, last_end - 1) << "in order; neighbours may share a token";
      last_end = span.end;
      if (options.evidence == Evidence::kBulk) {
        EXPECT_LE(span.end, tail_begin);
      } else {
        EXPECT_GE(span.begin, tail_begin);
        EXPECT_LT(span.end, item.prompt_tokens);
      }
    }
  }
}

// Every value asked for stands once in the prompt (variables: where they are assigned and used), in its
// evidence.
TEST_P(NeedleTest, AnswersStandInTheEvidence) {
  const size_t lines[] = {1, 4, 4, 5, 4, 4}, answers[] = {1, 1, 4, 5, 1, 1};
  const auto task = static_cast<size_t>(Options().task);
  for (const NeedleItem& item : Make(Options())) {
    EXPECT_THAT(item.evidence, SizeIs(lines[task]));
    ASSERT_THAT(item.answers, SizeIs(answers[task]));
    std::string evidence;
    for (const TokenSpan& span : item.evidence) absl::StrAppend(&evidence, Text(item, span), "|");
    size_t after = 0;
    for (const TokenSpan& span : item.answers) {
      const std::string value = Text(item, span);
      const size_t at = evidence.find(value, after);
      ASSERT_NE(at, std::string::npos) << value << " in order in " << evidence;
      if (item.answers.size() > 1) after = at + 1;
      if (Options().task == Task::kVariables) continue;
      const std::string prompt = Prompt(item);
      EXPECT_EQ(prompt.find(value), prompt.rfind(value));
    }
  }
}

TEST_P(NeedleTest, TheQuestionAndTheAnswerFollow) {
  for (const NeedleItem& item : Make(Options())) {
    const std::string prompt = Prompt(item);
    EXPECT_THAT(prompt, HasSubstr("<|im_start|>user\n"));
    EXPECT_THAT(prompt, testing::AnyOf(HasSubstr("<|im_end|>\n<|im_start|>assistant\nThe "),
                                       HasSubstr("<|im_end|>\n<|im_start|>assistant\nAnswer: ")));
    EXPECT_EQ(item.answers.front().begin, item.prompt_tokens);
    EXPECT_EQ(item.answers.back().end, static_cast<int64_t>(item.ids.size()));
    // The tokens are those of the whole text: nothing was cut where the pieces meet.
    const auto whole = tokenizer_->Encode(Text(item, {0, static_cast<int64_t>(item.ids.size())}),
                                          {.add_special = false, .parse_special = true});
    EXPECT_EQ(whole.value(), item.ids);
  }
}

TEST_P(NeedleTest, TheSameEveryTimeAndAnotherWithEverySeed) {
  NeedleOptions options = Options();
  const std::vector<NeedleItem> once = Make(options), twice = Make(options);
  std::set<std::vector<int32_t>> different;
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(once[i].ids, twice[i].ids);
    different.insert(once[i].ids);
  }
  EXPECT_EQ(different.size(), once.size());
  options.seed = 8;
  EXPECT_NE(Make(options)[0].ids, once[0].ids);
}

TEST_P(NeedleTest, DepthsSpreadOverTheRegion) {
  const NeedleOptions options = Options(4096, 2048);
  const double begin = options.evidence == Evidence::kBulk ? 0 : 0.5;
  std::vector<double> depths;
  for (const NeedleItem& item : Make(options)) depths.push_back(item.depth);
  std::sort(depths.begin(), depths.end());
  EXPECT_GE(depths.front(), begin);
  EXPECT_LE(depths.back(), begin + 0.5);
  const bool drawn = options.task == Task::kMultiValue || options.task == Task::kVariables;
  if (drawn) return;  // several lines are asked for: their places are random
  for (size_t i = 1; i < depths.size(); ++i) {
    EXPECT_LT(depths[i] - depths[i - 1], 0.5 * 0.3) << "six items, half of the prompt";
  }
}

TEST_P(NeedleTest, MoreItemsBeginWithTheSameOnes) {
  NeedleOptions options = Options();
  const std::vector<NeedleItem> six = Make(options);
  options.items = 8;
  const std::vector<NeedleItem> eight = Make(options);
  for (size_t i = 0; i < six.size(); ++i) EXPECT_EQ(eight[i].ids, six[i].ids);
}

TEST_P(NeedleTest, RefusesATailWithoutRowsOrWithoutABulk) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const int64_t tail : {int64_t{0}, int64_t{-1}, int64_t{1023}, int64_t{1024}, most}) {
    const absl::Status status = MakeNeedles(*tokenizer_, *text_, Options(1024, tail)).status();
    ASSERT_EQ(base::GetErrorDetail(status)->reason, "EVAL_WINDOWS") << tail;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tail must be in [1, "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("got ", tail)));
  }
}

TEST_P(NeedleTest, RefusesWhatDoesNotFit) {
  EXPECT_EQ(base::GetErrorDetail(MakeNeedles(*tokenizer_, *text_, Options(128, 64)).status())->reason,
            "EVAL_LENGTH");
  EXPECT_EQ(base::GetErrorDetail(MakeNeedles(*tokenizer_, "One. Two.", Options()).status())->reason,
            "EVAL_TEXT");
}

// A vocabulary as of Qwen2 or Llama 3, which merge a mark with the line break behind it: here the one that
// ends every pair of the JSON task, in place of a token that nothing needs.
std::unique_ptr<tokenizer::Tokenizer> MergingTokenizer(const std::string& folder) {
  formats::Json json = tokenizer::ReadJsonData("qwen2/tokenizer.json");
  formats::Json& model = json["model"];
  const std::string unneeded = "!\"\u010a\u010a", merged = "\",\u010a";
  formats::Json& merges = model["merges"];
  for (size_t i = 0; i < merges.size(); ++i) {
    if (merges[i][0].get<std::string>() + merges[i][1].get<std::string>() != unneeded) continue;
    merges.erase(i);
    break;
  }
  merges.push_back({"\",", "\u010a"});
  model["vocab"][merged] = model["vocab"][unneeded];
  model["vocab"].erase(unneeded);
  std::filesystem::create_directories(folder);
  EXPECT_TRUE(base::WriteFileAtomically(folder + "/tokenizer.json", json.dump()).ok());
  EXPECT_TRUE(base::WriteFileAtomically(folder + "/tokenizer_config.json",
                                        tokenizer::ReadData("qwen2/tokenizer_config.json"))
                  .ok());
  return tokenizer::Tokenizer::FromHuggingFace(folder).value();
}

TEST_P(NeedleTest, PlacesLinesWhereVocabulariesMergeAcrossThem) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/needle_test.", getpid());
  const auto merging = MergingTokenizer(folder);
  std::filesystem::remove_all(folder);
  const auto pair = merging->Encode("\",\n\"", {.add_special = false, .parse_special = false}).value();
  ASSERT_THAT(pair, SizeIs(2)) << "the mark with its line break, and what follows";
  for (const auto& [length, tail] : {std::pair<int, int>{1024, 512}, std::pair<int, int>{8192, 768}}) {
    const NeedleOptions options = Options(length, tail);
    const auto items = MakeNeedles(*merging, *text_, options);
    ASSERT_TRUE(items.ok()) << items.status();
    for (const NeedleItem& item : *items) {
      EXPECT_NEAR(static_cast<int64_t>(item.ids.size()), length, kLengthSlack);
      const int64_t tail_begin = item.prompt_tokens - tail;
      for (const TokenSpan& span : item.evidence) {
        EXPECT_TRUE(options.evidence == Evidence::kBulk ? span.end <= tail_begin : span.begin >= tail_begin);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, NeedleTest,
                         testing::Combine(testing::ValuesIn(kAllTasks),
                                          testing::Values(Evidence::kBulk, Evidence::kTail)),
                         [](const auto& info) {
                           return absl::StrCat(std::string(Name(std::get<0>(info.param))), "_",
                                               std::string(Name(std::get<1>(info.param))));
                         });

}  // namespace
}  // namespace ridgefill::eval
