// QUALITY's selection on a real model: the rows that hold the answer to a question are among the few that it
// takes, wherever they lie, and plain prose pays for fewer.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

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
constexpr float kShare = 0.1f;

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
  static std::vector<int32_t> Select(const std::vector<int32_t>& ids) {
    EXPECT_TRUE(shared_->forward->Lower(ids, static_cast<int64_t>(ids.size())).ok());
    ridge::FillDecision decision;
    decision.mode = ridge::Mode::kQuality;
    decision.tail = kTail;
    decision.share = kShare;
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
[[maybe_unused]] std::string Haystack(double depth, const std::string& needle) {
  const std::string novel =
      absl::StrReplaceAll(base::ReadFile("tests/data/corpus/heldout/katrine.txt").value(), {{"\n", " "}});
  std::vector<std::string> sentences = absl::StrSplit(novel.substr(20000, 7600), ". ");
  sentences.insert(sentences.begin() + static_cast<int64_t>(depth * static_cast<double>(sentences.size())),
                   needle);
  return absl::StrJoin(sentences, ". ");
}

TEST_F(SelectionNeedleTest, Sweep) {
  const std::string novel =
      absl::StrReplaceAll(base::ReadFile("tests/data/corpus/heldout/katrine.txt").value(), {{"\n", " "}});
  std::map<std::string, std::array<double, 4>> stat;
  int items = 0;
  for (int item = 0; item < 14; ++item) {
    const int chars = item % 2 ? 7600 : 3300;
    std::vector<std::string> sentences = absl::StrSplit(novel.substr(20000 + 9000 * item, chars), ". ");
    const double depth = 0.05 + 0.045 * item;
    sentences.insert(
        sentences.begin() + static_cast<int64_t>(depth * sentences.size()),
        absl::StrCat("One of the special magic numbers for apple is: ", 4837261 + 318977 * item));
    const tokenizer::ChatMessage message{
        "user", absl::StrCat("A special magic number is hidden within the following text. Make sure to "
                             "memorize it. I will quiz you about the number afterwards.\n",
                             absl::StrJoin(sentences, ". "),
                             "\nWhat is the special magic number for apple mentioned in the provided text?")};
    std::vector<int32_t> ids = shared_->lm.tokenizer->EncodeChat({message}).value();
    for (int32_t id : Encode("The special magic number for apple mentioned in the provided text is"))
      ids.push_back(id);
    if (ids.size() > kLongest) {
      std::printf("too long %zu\n", ids.size());
      continue;
    }
    const std::vector<int32_t> number = Encode(absl::StrCat(" ", 4837261 + 318977 * item));
    const auto at = std::search(ids.begin(), ids.end(), number.begin(), number.end());
    ASSERT_TRUE(at != ids.end());
    const int64_t pos = at - ids.begin(), n = ids.size(), bulk = n - kTail;
    if (pos + (int64_t)number.size() >= bulk) {
      std::printf("in tail\n");
      continue;
    }
    ASSERT_TRUE(shared_->forward->Lower(ids, n).ok());
    const std::vector<float> base_scores = shared_->forward->scores();
    ++items;
    for (int reach : {0, 4, 8, 16}) {
      std::vector<float> pooled(n);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = std::max<int64_t>(1, i - reach); j <= std::min<int64_t>(n - 1, i + reach); ++j)
          pooled[i] = std::max(pooled[i], base_scores[j]);
      for (float share : {0.05f, 0.08f, 0.1f, 0.15f, 0.2f}) {
        ridge::SelectionOptions o{.share = share, .least = ridge::kLeastAttention};
        const auto rows = ridge::SelectWindows(pooled, bulk, {0}, o);
        int in = 0;
        for (size_t i = 0; i < number.size(); ++i)
          in += std::binary_search(rows.begin(), rows.end(), pos + i);
        auto& t = stat[absl::StrCat("reach ", reach < 10 ? " " : "", reach, " share ", share,
                                    item % 2 ? " 2K" : " 1K")];
        t[0] += in == (int)number.size();
        t[1] += in > 0 && in < (int)number.size();
        t[2] += in == 0;
        t[3] += double(rows.size()) / bulk;
      }
    }
  }
  for (auto& [k, t] : stat)
    std::printf("%s: all %.0f part %.0f none %.0f rows %.3f\n", k.c_str(), t[0], t[1], t[2],
                t[3] / (items / 2.0));
}
}  // namespace
}  // namespace ridgefill::eval
