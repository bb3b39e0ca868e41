// Needle records from random items on a tiny model.
#include "engine/eval/needle_measure.h"

#include <gmock/gmock.h>

#include "engine/base/status.h"
#include "tests/engine/eval/tiny_fixture.h"

namespace ridgefill::eval {
namespace {

using testing::SizeIs;

class NeedleMeasureTest : public TinyFixture {
 protected:
  static constexpr int64_t kPrompt = 80;

  NeedleMeasureTest() : maps_(RandomMaps()) {
    subject_ = Subject::Create(*model_, *maps_, {.max_tokens = kTokens, .chunk_rows = 64}).value();
    for (const auto& document : documents_) {
      NeedleItem item;
      item.ids = document;
      item.prompt_tokens = kPrompt;
      item.answers = {{80, 83}, {84, 90}};  // token 83 stands between them
      item.depth = 0.05 + 0.3 * static_cast<double>(items_.size());
      items_.push_back(std::move(item));
    }
    options_.tail = 30;
    options_.length = kTokens;
  }

  NeedleMeasure Measure() const { return {items_, options_, {{Fill::kRidge}, {Fill::kIdentity}}}; }
  // The exact run's own greedy choice in the place of an answer token, forced from the left.
  void Solve(NeedleItem& item, const TokenSpan& span) {
    for (int64_t i = span.begin; i < span.end; ++i) {
      EXPECT_TRUE(subject_->Lower(item.ids).ok());
      EXPECT_TRUE(subject_->RunExact().ok());
      const std::vector<float> logits = subject_->forward().Logits(i - 1).value();
      item.ids[i] = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    }
  }

  std::unique_ptr<ridge::DeviceMaps> maps_;
  std::unique_ptr<Subject> subject_;
  std::vector<NeedleItem> items_;
  NeedleOptions options_;
};

TEST_F(NeedleMeasureTest, AValueIsRightWhenAllItsTokensAreTheMostLikely) {
  Solve(items_[0], {80, 83});
  Solve(items_[1], {80, 83});
  Solve(items_[1], {84, 90});
  Solve(items_[2], {84, 89});
  items_[2].ids[89] = (items_[2].ids[89] + 1) % model_->config().vocab;  // one wrong token at the end
  const NeedleMeasure measure = Measure();
  EXPECT_EQ(measure.Values(*subject_, 0).value()["exact"]["right"], Record({1, 0}));
  EXPECT_EQ(measure.Values(*subject_, 1).value()["exact"]["right"], Record({1, 1}));
  EXPECT_EQ(measure.Values(*subject_, 2).value()["exact"]["right"], Record({0, 0}));
}

TEST_F(NeedleMeasureTest, TheLossIsOfTheValuesTokensAlone) {
  ASSERT_TRUE(subject_->Lower(items_[0].ids).ok());
  ASSERT_TRUE(subject_->RunExact().ok());
  const std::vector<double> nll = subject_->forward().NextTokenNll(79, 89).value();
  double sum = 0;
  for (size_t i = 0; i < nll.size(); ++i) sum += i == 3 ? 0 : nll[i];
  EXPECT_NEAR(Measure().Values(*subject_, 0).value()["exact"]["nll"].get<double>(), sum / 9, 2e-6);
}

TEST_F(NeedleMeasureTest, RecordsAreAboutAllItemsAndThoseThatExactSolves) {
  const auto run = [](int a, int b) { return Record{{"right", {a, b}}, {"nll", 0.5}, {"outliers", 2}}; };
  std::vector<Record> values;
  // Exact solves 0, 1 and 3; ridge 0, 1 and 2; identity none.
  for (const auto& [exact, ridge] : {std::pair(1, 1), {1, 1}, {0, 1}, {1, 0}}) {
    values.push_back({{"exact", run(1, exact)}, {"runs", {run(1, ridge), run(0, 0)}}});
  }
  const std::vector<Record> records = Measure().Records(values);
  ASSERT_THAT(records, SizeIs(3));
  EXPECT_EQ(records[0]["mode"], "EXACT");
  EXPECT_EQ(records[0]["mean"], 0.75);
  EXPECT_EQ(records[0]["recall"], 0.875);
  const Record& ridge = records[1];
  EXPECT_EQ(ridge["items"], 4);
  EXPECT_EQ(ridge["mean"], 0.75);
  EXPECT_EQ(ridge["values"], Record({1, 1, 1, 0}));
  EXPECT_EQ(ridge["on_solved"]["items"], 3);
  EXPECT_EQ(ridge["on_solved"]["mean"], Rounded(2.0 / 3));
  EXPECT_EQ(ridge["against_exact"]["lost"], 1);
  EXPECT_EQ(ridge["against_exact"]["gained"], 1);
  EXPECT_EQ(ridge["against_identity"]["gained"], 3);
  EXPECT_EQ(ridge["against_identity"]["mcnemar_p"], 0.25);
  EXPECT_EQ(ridge["outliers"], 2);
  EXPECT_EQ(ridge["by_depth"][0]["items"], 1) << "depths 0.05, 0.35, 0.65, 0.95";
  EXPECT_EQ(ridge["by_depth"][2]["items"], 0);
  EXPECT_EQ(ridge["by_depth"][4]["mean"], 0);
  EXPECT_EQ(records[2]["mean"], 0);
}

}  // namespace
}  // namespace ridgefill::eval
