// Records of text on a tiny model, against the same figures by hand.
#include "engine/eval/text.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <set>

#include "engine/base/status.h"
#include "engine/eval/text_records.h"
#include "tests/engine/eval/tiny_fixture.h"

namespace ridgefill::eval {
namespace {

using testing::SizeIs;

class TextTest : public TinyFixture {
 protected:
  static constexpr int64_t kTail = 30, kContinuation = 10;

  TextTest() : maps_(RandomMaps()) {
    subject_ = Subject::Create(*model_, *maps_, {.max_tokens = kTokens, .chunk_rows = 64}).value();
    options_.tails = {kTail};
    options_.continuation = kContinuation;
  }

  std::vector<Record> Records(const RunOptions& given = {}) {
    const TextMeasure measure = TextMeasure::Create(documents_, options_).value();
    std::vector<Record> out;
    RunOptions run = given;
    run.header.model = "tiny";
    run.header.weights = std::string(64, 'a');
    run.emit = [&](const Record& record) { return out.push_back(record), absl::OkStatus(); };
    EXPECT_TRUE(RunMeasure(measure, *subject_, run).ok());
    return out;
  }

  static Record Find(const std::vector<Record>& records, const char* measure, const char* fill,
                     const char* window) {
    for (const Record& r : records) {
      if (r["measure"] == measure && r["fill"] == fill && r["window"] == window) return r;
    }
    ADD_FAILURE() << "no record " << measure << " " << fill << " " << window;
    return {};
  }

  // NLL by row [begin, kTokens - 1) of document 0.
  std::vector<double> Nll(const ridge::FillPlan& plan, runtime::FillPass* fill, int64_t begin) {
    EXPECT_TRUE(subject_->Lower(documents_[0]).ok());
    EXPECT_TRUE(subject_->forward().Late(plan, fill).ok());
    return subject_->forward().NextTokenNll(begin, kTokens - 1).value();
  }

  std::unique_ptr<ridge::DeviceMaps> maps_;
  std::unique_ptr<Subject> subject_;
  TextOptions options_;
};

TEST_F(TextTest, NllRecordsArePairedFigures) {
  const std::vector<Record> records = Records();
  const Record r = Find(records, "nll", "ridge", "continuation");
  EXPECT_EQ(r["model"], "tiny");
  EXPECT_EQ(r["weights"], "aaaaaaaaaaaa");
  EXPECT_EQ(r["mode"], "SPEED");
  EXPECT_EQ(r["tail"], kTail);
  EXPECT_EQ(r["length"], kTokens);
  EXPECT_EQ(r["prompt_tokens"], 80);
  EXPECT_EQ(r["filled_share"], Rounded(49.0 / 80)) << "all but row 0 and the tail";
  EXPECT_EQ(r["outliers"], 1);
  EXPECT_EQ(r["documents"], 4);
  EXPECT_EQ(r["window_tokens"], kContinuation);
  ASSERT_THAT(r["values"], SizeIs(4));

  const auto fill = runtime::FillPass::Create(*model_, *maps_, kTokens).value();
  const auto sum = [&](const ridge::FillPlan& plan) {
    const std::vector<double> nll = Nll(plan, fill.get(), 79);
    return std::accumulate(nll.begin(), nll.end(), 0.0);
  };
  const double delta = (sum(Plan(40)) - sum(ExactPlan())) / 10;
  EXPECT_NEAR(r["values"][0].get<double>(), delta, 2e-6);
  EXPECT_EQ(Find(records, "nll", "identity", "tail")["window_tokens"], kTail - 1);
}

TEST_F(TextTest, KlAndTop1AreOfTheSameRows) {
  const Record r = Find(Records(), "nll", "ridge", "continuation");
  const auto fill = runtime::FillPass::Create(*model_, *maps_, kTokens).value();
  const auto logits = [&](const ridge::FillPlan& plan) {
    Nll(plan, fill.get(), 79);
    std::vector<std::vector<float>> out;
    for (int64_t row = 79; row < 89; ++row) out.push_back(subject_->forward().Logits(row).value());
    return out;
  };
  const auto exact = logits(ExactPlan()), filled = logits(Plan(40));
  double kl = 0, top1 = 0;
  for (size_t row = 0; row < exact.size(); ++row) {
    const auto log_softmax = [](std::vector<float> x) {
      double sum = 0;
      for (float logit : x) sum += std::exp(double{logit});
      for (float& logit : x) logit -= static_cast<float>(std::log(sum));
      return x;
    };
    const auto p = log_softmax(exact[row]), q = log_softmax(filled[row]);
    for (size_t i = 0; i < p.size(); ++i) kl += std::exp(double{p[i]}) * (double{p[i]} - q[i]) / 10;
    const auto best = [](const std::vector<float>& x) {
      return std::max_element(x.begin(), x.end()) - x.begin();
    };
    top1 += best(p) == best(q) ? 0.1 : 0;
  }
  const TextMeasure measure = TextMeasure::Create({documents_[0]}, options_).value();
  const Record values = measure.Values(*subject_, 0).value();
  const TextRun run = ReadRuns({&values, 1}, 0, 0, 0)[0];
  const auto mean = [](const std::vector<double>& x) {
    return std::accumulate(x.end() - 10, x.end(), 0.0) / 10;
  };
  EXPECT_NEAR(mean(run.kl), kl, 1e-5);
  EXPECT_NEAR(mean(run.top1), top1, 1e-9);
  EXPECT_GT(kl, 1e-4) << "random maps";
  EXPECT_GE(r["kl"]["low"].get<double>(), 0);
}

TEST_F(TextTest, DistanceBucketsCoverTheScoredRows) {
  const Record r = Find(Records(), "nll", "ridge", "tail");
  ASSERT_THAT(r["by_distance"], SizeIs(1)) << "39 rows are one bucket";
  EXPECT_EQ(r["by_distance"][0]["to"], 39);
  const double tail = r["mean"].get<double>() * 29;
  const double continuation = Find(Records(), "nll", "ridge", "continuation")["mean"].get<double>() * 10;
  EXPECT_NEAR(r["by_distance"][0]["mean"].get<double>(), (tail + continuation) / 39, 2e-6);
}

TEST_F(TextTest, ShorterTailsReadTheSameExactRun) {
  const double alone = Find(Records(), "nll", "ridge", "tail")["mean"].get<double>();
  options_.tails = {kTail, 45};
  std::vector<Record> of_30, of_45;
  for (const Record& r : Records()) (r["tail"] == kTail ? of_30 : of_45).push_back(r);
  EXPECT_EQ(Find(of_30, "nll", "ridge", "tail")["mean"], alone);
  EXPECT_NE(Find(of_45, "nll", "ridge", "tail")["mean"], alone);
}

// The choice by hand: the exact run of the tail alone against that of the whole document.
TEST_F(TextTest, DistantTokensAreThoseThatMissTheBulk) {
  const Record r = Find(Records(), "distant", "ridge", "continuation");
  EXPECT_EQ(r["window_tokens"], 1) << "5 % of ten tokens, at least one";
  const auto fill = runtime::FillPass::Create(*model_, *maps_, kTokens).value();
  const std::vector<double> exact = Nll(ExactPlan(), nullptr, 79), filled = Nll(Plan(40), fill.get(), 79);
  ASSERT_TRUE(subject_->Lower(absl::MakeConstSpan(documents_[0]).subspan(50)).ok());
  ASSERT_TRUE(subject_->RunExact().ok());
  const std::vector<double> cut = subject_->forward().NextTokenNll(29, 39).value();
  size_t most = 0;
  for (size_t i = 1; i < cut.size(); ++i) {
    if (cut[i] - exact[i] > cut[most] - exact[most]) most = i;
  }
  EXPECT_NEAR(r["values"][0].get<double>(), filled[most] - exact[most], 2e-6);
}

TEST_F(TextTest, NovelTokensOccurNowhereBefore) {
  const Record r = Find(Records(), "novel", "ridge", "novel");
  const auto fill = runtime::FillPass::Create(*model_, *maps_, kTokens).value();
  const std::vector<double> exact = Nll(ExactPlan(), nullptr, 50), filled = Nll(Plan(40), fill.get(), 50);
  const std::vector<int32_t>& ids = documents_[0];
  double sum = 0;
  int tokens = 0;
  for (int64_t i = 51; i < kTokens; ++i) {
    if (std::find(ids.begin(), ids.begin() + i, ids[i]) != ids.begin() + i) continue;
    sum += filled[i - 51] - exact[i - 51];
    ++tokens;
  }
  ASSERT_GT(tokens, 0);
  EXPECT_NEAR(r["values"][0].get<double>(), sum / tokens, 2e-6);
  EXPECT_GT(r["low"].get<double>(), 0) << "a ratio";
}

TEST_F(TextTest, RefusesDocumentsThatMakeNoSense) {
  const auto reason = [&](const std::vector<std::vector<int32_t>>& documents, int64_t tail) {
    options_.tails = {tail};
    return base::GetErrorDetail(TextMeasure::Create(documents, options_).status())->reason;
  };
  EXPECT_EQ(reason({}, 20), "EVAL_NO_DOCUMENTS");
  EXPECT_EQ(reason(documents_, 80), "EVAL_WINDOWS");
  EXPECT_EQ(reason(documents_, 1), "EVAL_WINDOWS");
  documents_[2].pop_back();
  EXPECT_EQ(reason(documents_, 20), "EVAL_LENGTHS");
}

}  // namespace
}  // namespace ridgefill::eval
