// A sweep over two splits of a tiny model, against each split measured alone.
#include "engine/eval/sweep.h"

#include <gmock/gmock.h>

#include <map>

#include "engine/base/file.h"
#include "engine/base/status.h"
#include "engine/eval/text.h"
#include "tests/engine/eval/tiny_fixture.h"

namespace ridgefill::eval {
namespace {

using testing::SizeIs;

// Each look at it takes as long as the test says: the n-th interval lasts n milliseconds, so that the order
// of runs shows.
class StepClock : public base::Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch() + at_; }
  absl::Duration Monotonic() const override {
    if (looks_++ % 2 == 1) at_ += absl::Milliseconds((looks_ / 2) * scale_);
    return at_;
  }
  int intervals() const { return looks_ / 2; }
  int scale_ = 1;

 private:
  mutable int looks_ = 0;
  mutable absl::Duration at_;
};

class SweepTest : public TinyFixture {
 protected:
  SweepTest() {
    for (const int split : {1, 2}) {
      maps_[split] = RandomMaps({}, split);
      options_.maps[split] = maps_[split]->manifest().digest;
    }
    const ridge::DeviceMaps* const both[] = {maps_[1].get(), maps_[2].get()};
    subject_ = Subject::Create(*model_, both, {.max_tokens = kTokens, .chunk_rows = 64}).value();
    options_.tails = {30, 40};
    options_.continuation = 10;
    options_.variants = {
        {Fill::kRidge}, {Fill::kRidge, ridge::Selector::kAttention, 0.9f}, {Fill::kIdentity}};
    options_.runs = 3;
    options_.threads = 5;
    options_.clock = &clock_;
  }

  std::vector<Record> Run(const RunOptions& given = {}) {
    std::vector<Record> out;
    RunOptions run = given;
    run.header.model = "tiny";
    run.header.maps = "both";
    run.emit = [&](const Record& record) { return out.push_back(record), absl::OkStatus(); };
    const absl::Status status =
        RunMeasure(SweepMeasure::Create(documents_, options_).value(), *subject_, run);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }

  static Record Find(const std::vector<Record>& records, int split, int64_t tail, const char* selection,
                     const char* fill, const char* window) {
    for (const Record& r : records) {
      if (r["split"] == split && r["tail"] == tail && r["selection"] == selection && r["fill"] == fill &&
          r["window"] == window) {
        return r;
      }
    }
    ADD_FAILURE() << "no record of split " << split << ", tail " << tail << " " << selection << " " << fill;
    return {};
  }

  StepClock clock_;
  std::map<int, std::unique_ptr<ridge::DeviceMaps>> maps_;
  std::unique_ptr<Subject> subject_;
  SweepOptions options_;
};

// The point of the whole: what one exact run serves is what each split, tail and share gives alone.
TEST_F(SweepTest, EachPointIsWhatItIsAlone) {
  const std::vector<Record> records = Run();
  EXPECT_THAT(records, SizeIs(2 * 2 * 3 * 2)) << "splits, tails, variants, windows";
  for (const int split : {1, 2}) {
    const auto alone =
        Subject::Create(*model_, *maps_[split], {.max_tokens = kTokens, .chunk_rows = 64}).value();
    TextOptions text;
    text.tails = options_.tails;
    text.continuation = options_.continuation;
    text.variants = options_.variants;
    text.distant = text.novel = false;
    RunOptions run;
    int compared = 0;
    run.emit = [&](const Record& want) {
      const Record got =
          Find(records, split, want["tail"].get<int64_t>(), want["selection"].get<std::string>().c_str(),
               want["fill"].get<std::string>().c_str(), want["window"].get<std::string>().c_str());
      for (const char* same : {"mode", "fill", "share", "outliers", "length", "prompt_tokens", "filled_share",
                               "documents", "documents_digest", "window_tokens"}) {
        EXPECT_EQ(got[same], want[same]) << same;
      }
      for (size_t i = 0; i < documents_.size(); ++i) {
        EXPECT_NEAR(got["values"][i].get<double>(), want["values"][i].get<double>(), 3e-6);
      }
      for (const char* figure : {"kl", "top1"}) {
        EXPECT_NEAR(got[figure]["mean"].get<double>(), want[figure]["mean"].get<double>(), 3e-6);
      }
      EXPECT_NEAR(got["exact_nll"].get<double>(), want["exact_nll"].get<double>(), 3e-6);
      ++compared;
      return absl::OkStatus();
    };
    ASSERT_TRUE(RunMeasure(TextMeasure::Create(documents_, text).value(), *alone, run).ok());
    EXPECT_EQ(compared, 2 * 3 * 2);
  }
  const double of_1 = Find(records, 1, 30, "none", "ridge", "tail")["mean"].get<double>();
  EXPECT_NE(of_1, Find(records, 2, 30, "none", "ridge", "tail")["mean"].get<double>());
  EXPECT_GT(Find(records, 1, 30, "attention", "ridge", "tail")["selected"].get<double>(), 0);
}

TEST_F(SweepTest, ARecordNamesItsOwnMapSet) {
  for (const Record& r : Run()) {
    const int split = r["split"].get<int>();
    EXPECT_EQ(r["maps"], maps_[split]->manifest().digest.substr(0, 12));
    EXPECT_EQ(r["model"], "tiny");
    EXPECT_EQ(r["measure"], "sweep");
  }
}

// Split 2 comes first: intervals 1 to 7 warm up, then exact takes 8, 15 and 22 ms and the first point a
// millisecond more each time; a median of those is the middle one.
TEST_F(SweepTest, TimesTakeTurnsAndTheirMedianCounts) {
  const std::vector<Record> records = Run();
  EXPECT_EQ(clock_.intervals(), 2 * 4 * 7) << "splits, runs and one to warm up, exact and six points";
  const Record first = Find(records, 2, 30, "none", "ridge", "continuation");
  EXPECT_EQ(first["ttft"]["exact_ms"], 15.0);
  EXPECT_EQ(first["ttft"]["exact_ms_min"], 8.0);
  EXPECT_EQ(first["ttft"]["ms"], 16.0);
  EXPECT_EQ(first["ttft"]["ms_min"], 9.0);
  EXPECT_EQ(first["ttft_ratio"], Rounded(16.0 / 15));
  EXPECT_EQ(first["ttft"]["runs"], 3);
  EXPECT_EQ(first["ttft"]["threads"], 5);
  EXPECT_EQ(first["ttft"]["prompt_tokens"], 80);
  const Record last = Find(records, 1, 40, "none", "identity", "tail");
  EXPECT_EQ(last["ttft"]["exact_ms"], 28 + 15.0);
  EXPECT_EQ(last["ttft"]["ms"], 28 + 21.0);
}

TEST_F(SweepTest, AnEvenNumberOfRunsHasItsMedianBetweenTwo) {
  options_.runs = 2;
  EXPECT_EQ(Find(Run(), 2, 30, "none", "ridge", "tail")["ttft"]["exact_ms"], 11.5);
}

TEST_F(SweepTest, WithoutRunsThereAreNoTimes) {
  options_.runs = 0;
  const std::vector<Record> records = Run();
  EXPECT_THAT(records, SizeIs(24));
  for (const Record& r : records) EXPECT_FALSE(r.contains("ttft_ratio") || r.contains("ttft"));
  EXPECT_EQ(clock_.intervals(), 0);
}

TEST_F(SweepTest, GoesOnWithWhatIsThere) {
  const auto items = JsonLog::Open("").value();
  RunOptions run;
  run.items = items.get();
  int computed = 0;
  run.progress = [&](const Progress& progress) {
    computed += progress.resumed ? 0 : 1;
    return absl::OkStatus();
  };
  const auto all = documents_;
  documents_.resize(3);
  Run(run);
  EXPECT_EQ(computed, 3 + 2) << "documents, and times of two splits";
  documents_ = all;
  const std::vector<Record> more = Run(run);
  EXPECT_EQ(computed, 3 + 2 + 1) << "the times of the same first document are there";
  const std::vector<Record> again = Run(run);
  EXPECT_EQ(computed, 6);
  EXPECT_EQ(again, more);
  options_.runs = 4;
  Run(run);
  EXPECT_EQ(computed, 6 + 2) << "other times of the same documents";
  options_.tails = {30};
  Run(run);
  EXPECT_EQ(computed, 8 + 4 + 2) << "other points";
}

TEST_F(SweepTest, RefusesASweepOverNothing) {
  const auto reason = [&] {
    return base::GetErrorDetail(SweepMeasure::Create(documents_, options_).status())->reason;
  };
  options_.variants.clear();
  EXPECT_EQ(reason(), "EVAL_POINTS");
  options_.variants = {{Fill::kRidge}};
  options_.maps.clear();
  EXPECT_EQ(reason(), "EVAL_POINTS");
  options_.tails = {80};
  EXPECT_EQ(reason(), "EVAL_WINDOWS");
}

// A fill overwrites the layers above its split: a higher split must not run over them.
TEST_F(SweepTest, ALowerSplitsFillSpoilsAHigherOnesLayers) {
  ASSERT_TRUE(subject_->Lower(documents_[0], 80).ok());
  const Shape shape{80, 30};
  Variant low{Fill::kRidge}, high{Fill::kRidge};
  low.split = 1;
  high.split = 2;
  ASSERT_TRUE(subject_->RunFilled(high, shape).ok());
  ASSERT_TRUE(subject_->RunFilled(low, shape).ok());
  EXPECT_DEATH((void)subject_->RunFilled(high, shape), "");
  ASSERT_TRUE(subject_->Lower(documents_[0], 80).ok());
  EXPECT_TRUE(subject_->RunFilled(high, shape).ok());
}

}  // namespace
}  // namespace ridgefill::eval
