// Spliced caches on a tiny model: nothing in is exact, everything in is the fill, to the bit.
#include "engine/eval/splice.h"

#include <gmock/gmock.h>

#include <numeric>
#include <set>

#include "engine/base/status.h"
#include "tests/engine/eval/tiny_fixture.h"

namespace ridgefill::eval {
namespace {

using testing::SizeIs;

class SpliceTest : public TinyFixture {
 protected:
  SpliceTest() : maps_(RandomMaps()) {
    subject_ = Subject::Create(*model_, *maps_, {.max_tokens = kTokens, .chunk_rows = 64}).value();
    options_.tail = 30;
    options_.continuation = 10;
  }
  // Mean over the continuation's tokens of the last run.
  double Loss() {
    const std::vector<double> nll = subject_->forward().NextTokenNll(79, 89).value();
    return std::accumulate(nll.begin(), nll.end(), 0.0) / 10;
  }

  std::unique_ptr<ridge::DeviceMaps> maps_;
  std::unique_ptr<Subject> subject_;
  SpliceOptions options_;
};

TEST_F(SpliceTest, TheExactCacheGivesTheExactRun) {
  FilledForward& forward = subject_->forward();
  ASSERT_TRUE(subject_->Lower(documents_[0]).ok());
  ASSERT_TRUE(subject_->RunExact().ok());
  const double exact = Loss();
  std::vector<std::vector<char>> layers;
  layers.reserve(model_->config().layers);
  for (int layer = 0; layer < model_->config().layers; ++layer)
    layers.push_back(forward.ReadKv(layer).value());
  ASSERT_TRUE(subject_->RunFilled(options_.variant, {80, 30}).ok());
  EXPECT_NE(Loss(), exact);
  for (int layer = 0; layer < model_->config().layers; ++layer) {
    ASSERT_TRUE(forward.WriteKv(layer, layers[layer]).ok());
  }
  ASSERT_TRUE(forward.LateOverCache(Plan(40)).ok());
  EXPECT_EQ(Loss(), exact);
}

TEST_F(SpliceTest, EverythingPutInIsTheFill) {
  const Record values = SpliceMeasure::Create(documents_, options_)->Values(*subject_, 0).value();
  const Record& cells = values["cells"];
  ASSERT_THAT(cells, SizeIs(3 * (1 + 2))) << "all layers, then 2 and 3 of 4; K, V and both";
  ASSERT_TRUE(subject_->Lower(documents_[0]).ok());
  ASSERT_TRUE(subject_->RunExact().ok());
  const double exact = Loss();
  ASSERT_TRUE(subject_->RunFilled(options_.variant, {80, 30}).ok());
  EXPECT_EQ(cells[2]["continuation"]["dnll"].get<double>(), Rounded(Loss() - exact));
  EXPECT_GT(cells[2]["continuation"]["kl"], 0);
  EXPECT_EQ(cells[2]["layers"], "all");
  EXPECT_EQ(cells[2]["half"], "both");
  EXPECT_EQ(cells[3]["layers"], 2);
  EXPECT_EQ(cells[8]["layers"], 3);
  std::set<double> different;
  for (const Record& cell : cells) different.insert(cell["continuation"]["dnll"].get<double>());
  EXPECT_THAT(different, SizeIs(9)) << "each half of each layer does something of its own";
}

TEST_F(SpliceTest, TheSummaryNamesLayersAndHalf) {
  const auto cell = [](const Record& layers, const char* half, double loss) {
    const Record window = {{"dnll", loss}, {"kl", 2 * loss}};
    return Record{{"layers", layers}, {"half", half}, {"tail", window}, {"continuation", window}};
  };
  const Record document = {{"outliers", 1},
                           {"cells",
                            {cell("all", "k", 0.3), cell("all", "v", 0.1), cell("all", "both", 0.5),
                             cell(2, "k", 0.02), cell(2, "v", 0.03), cell(2, "both", 0.05), cell(3, "k", 0.2),
                             cell(3, "v", 0.01), cell(3, "both", 0.21)}}};
  const std::vector<Record> values(documents_.size(), document);
  const std::vector<Record> records = SpliceMeasure::Create(documents_, options_)->Records(values);
  ASSERT_THAT(records, SizeIs(2 * (9 + 1)));
  EXPECT_EQ(records[0]["window"], "tail");
  EXPECT_EQ(records[0]["half"], "k");
  EXPECT_EQ(records[0]["mean"], 0.3);
  EXPECT_EQ(records[0]["documents"], 4);
  EXPECT_EQ(records[0]["kl"]["mean"], 0.6);
  const Record& summary = records[9];
  EXPECT_EQ(summary["half"], "k_less_v");
  EXPECT_NEAR(summary["mean"].get<double>(), 0.2, 1e-9);
  EXPECT_EQ(summary["k_share"], 0.75);
  EXPECT_EQ(summary["layers_by_kl"][0]["layer"], 3);
  EXPECT_EQ(summary["layers_by_kl"][1]["v"], 0.06);
  EXPECT_EQ(records[19]["window"], "continuation");
}

}  // namespace
}  // namespace ridgefill::eval
