// QUALITY's selection on a real model: the rows that hold the answer to a question are among the few that it
// takes, wherever they lie, and plain prose pays for fewer.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "engine/base/file.h"
#include "engine/eval/filled_forward.h"
#include "engine/ridge/selection.h"
#include "tests/engine/eval/smollm.h"

namespace ridgefill::eval {
namespace {

constexpr int kSplit = 18, kTail = 256;
constexpr int64_t kLongest = 2200;

class SelectionNeedleTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return;
#endif
    if (!testing_support::SmolLmIsThere()) return;
    shared_ = new Shared{testing_support::LoadSmolLm(), nullptr};
    shared_->forward = FilledForward::Create(*shared_->lm.model, kSplit, kLongest, 1024).value();
  }
  static void TearDownTestSuite() {
    delete shared_;
    shared_ = nullptr;
  }
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a real model under a sanitizer takes minutes";
#endif
    if (shared_ == nullptr)
      GTEST_SKIP() << "no " << testing_support::SmolLmPath() << " (deploy/fetch_model.sh)";
  }

  static std::vector<int32_t> Encode(const std::string& text) {
    return shared_->lm.tokenizer->Encode(text).value();
  }

  // Row 0 is this model's only outlier.
  static std::vector<int32_t> Select(const std::vector<int32_t>& ids, float share) {
    EXPECT_TRUE(shared_->forward->Lower(ids, static_cast<int64_t>(ids.size())).ok());
    ridge::FillDecision decision;
    decision.mode = ridge::Mode::kQuality;
    decision.tail = kTail;
    decision.share = share;
    return ridge::SelectRows(decision, ids, shared_->forward->scores(), {0});
  }

  struct Shared {
    testing_support::SmolLm lm;
    std::unique_ptr<FilledForward> forward;
  };
  static Shared* shared_;
};
SelectionNeedleTest::Shared* SelectionNeedleTest::shared_ = nullptr;

// About 2,000 tokens of a novel with one sentence between two of its own, and the question at the end.
std::string Haystack(double depth, const std::string& needle) {
  const std::string novel =
      absl::StrReplaceAll(base::ReadFile("tests/data/corpus/heldout/katrine.txt").value(), {{"\n", " "}});
  std::vector<std::string> sentences = absl::StrSplit(novel.substr(20000, 7600), ". ");
  sentences.insert(sentences.begin() + static_cast<int64_t>(depth * static_cast<double>(sentences.size())),
                   needle);
  return absl::StrJoin(sentences, ". ");
}

TEST_F(SelectionNeedleTest, RowsOfTheAnswerAreSelected) {
  for (double depth : {0.5, 0.7}) {
    const tokenizer::ChatMessage message{
        "user",
        absl::StrCat("A special magic number is hidden within the following text. Make sure to memorize it. "
                     "I will quiz you about the number afterwards.\n",
                     Haystack(depth, "One of the special magic numbers for apple is: 4837261"),
                     "\nWhat is the special magic number for apple mentioned in the provided text?")};
    std::vector<int32_t> ids = shared_->lm.tokenizer->EncodeChat({message}).value();
    for (int32_t id : Encode("The special magic number for apple mentioned in the provided text is")) {
      ids.push_back(id);
    }
    ASSERT_LE(static_cast<int64_t>(ids.size()), kLongest);
    const std::vector<int32_t> number = Encode(" 4837261");
    const auto at = std::search(ids.begin(), ids.end(), number.begin(), number.end());
    ASSERT_TRUE(at != ids.end());
    const std::vector<int32_t> rows = Select(ids, 0.1f);
    std::printf("%d tokens, depth %.1f: %d rows selected\n", static_cast<int>(ids.size()), depth,
                static_cast<int>(rows.size()));
    for (size_t i = 0; i < number.size(); ++i) {
      EXPECT_THAT(rows, testing::Contains(at - ids.begin() + static_cast<int64_t>(i))) << "depth " << depth;
    }
  }
}

TEST_F(SelectionNeedleTest, ProsePaysForFewerRowsThanItsShare) {
  const auto documents =
      fit::LoadCorpus(*shared_->lm.tokenizer, "tests/data/corpus/heldout", {.document_tokens = 2048}).value();
  constexpr int kDocuments = 5;  // of prose and of an encyclopedia
  const float share = ridge::SelectionOptions().share;
  size_t selected = 0;
  for (int i = 0; i < kDocuments; ++i) {
    const size_t rows = Select(documents[i].ids, share).size();
    std::printf("%s: %d rows selected\n", documents[i].file.c_str(), static_cast<int>(rows));
    selected += rows;
  }
  constexpr double kBulk = kDocuments * (2048 - kTail);
  EXPECT_GT(static_cast<double>(selected), 0.95 * ridge::kSingleShare * kBulk);
  EXPECT_LT(static_cast<double>(selected), 0.6 * share * kBulk);
}

}  // namespace
}  // namespace ridgefill::eval
