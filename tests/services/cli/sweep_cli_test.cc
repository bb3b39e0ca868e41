// `ridgefill fit --split auto`, `eval sweep` and `eval plot`, as their command lines run them, on a tiny
// model.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/base/status.h"
#include "engine/eval/plot.h"
#include "engine/ridge/map_set.h"
#include "engine/ridge/sweep.h"
#include "services/cli/command.h"
#include "services/cli/fit_auto.h"

namespace ridgefill::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr char kModel[] = "tests/data/golden/tiny/llama";

std::string ReasonOf(const absl::Status& status) {
  const auto detail = base::GetErrorDetail(status);
  return detail ? detail->reason : status.ToString();
}

class SweepCliTest : public testing::Test {
 public:
  ~SweepCliTest() override { std::filesystem::remove_all(folder_); }

 protected:
  SweepCliTest() {
    folder_ = absl::StrCat(testing::TempDir(), "/sweep_cli_test.", getpid(), ".",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    const std::string text = base::ReadFile("tests/data/corpus/heldout/katrine.txt").value();
    WriteText("fit", text.substr(3000, 4000));
    WriteText("heldout", text.substr(8000, 60000));
  }

  void WriteText(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(Path(name));
    std::ofstream(Path(name) + "/text.txt") << text;
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  absl::Status RunCommand(std::vector<std::string> words) const {
    CLI::App app;
    cli::Run run;
    AddFit(app, run);
    AddEval(app, run);
    AddInspect(app, run);
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    app.parse(words);
    return run({folder_});
  }
  // `usual` flags and values, those that `words` gives left out, then `words`.
  absl::Status RunWith(const std::vector<std::string>& command,
                       const std::vector<std::pair<std::string, std::string>>& usual,
                       const std::vector<std::string>& words) const {
    std::vector<std::string> all = command;
    for (const auto& [flag, value] : usual) {
      if (std::find(words.begin(), words.end(), flag) != words.end()) continue;
      all.insert(all.end(), {flag, value});
    }
    all.insert(all.end(), words.begin(), words.end());
    return RunCommand(all);
  }
  absl::Status Fit(const std::string& split, const std::vector<std::string>& words) const {
    std::vector<std::pair<std::string, std::string>> usual = {
        {"--model", kModel},     {"--threads", "1"},        {"--corpus", Path("fit")},
        {"--out", Path("maps")}, {"--rows", "200"},         {"--document_tokens", "128"},
        {"--held_out", "1"},     {"--weigh_rows", "false"}, {"--previous_row", "false"},
        {"--mixture", "1"},      {"--tail", "64"},          {"--split", split}};
    if (split == "auto") {
      usual.insert(usual.end(), {{"--candidates", "1,2"},
                                 {"--heldout", Path("heldout")},
                                 {"--documents", "5"},
                                 {"--length", "336"}});
    }
    return RunWith({"fit"}, usual, words);
  }
  absl::Status FitAuto(const std::vector<std::string>& words) const { return Fit("auto", words); }
  absl::Status Sweep(const std::vector<std::string>& words) const {
    return RunWith({"eval", "sweep"},
                   {{"--model", kModel},
                    {"--threads", "1"},
                    {"--corpus", Path("heldout")},
                    {"--documents", "2"},
                    {"--length", "128"},
                    {"--continuation", "16"},
                    {"--tails", "16,32"},
                    {"--shares", "0,0.5"},
                    {"--runs", "1"}},
                   words);
  }
  ridge::MapSetManifest Manifest(int split) const {
    return ridge::MapSet::Load(Path(absl::StrCat("maps/split-", split))).value()->manifest();
  }
  std::vector<ridge::SweptSplit> Search(int split) const {
    return ridge::ReadSweep(Path(absl::StrCat("maps/split-", split))).value();
  }

  std::string folder_;
};

TEST_F(SweepCliTest, AutoChoosesTheSmallestWithinBoundsAndStoresTheSearch) {
  testing::internal::CaptureStdout();
  const absl::Status status = FitAuto({"--max_loss", "100", "--min_needle", "0"});
  const std::string printed = testing::internal::GetCapturedStdout();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(printed, HasSubstr("chosen: split 1, " + Path("maps/split-1")));
  for (const int split : {1, 2}) {
    const std::vector<ridge::SweptSplit> sweep = Search(split);
    ASSERT_THAT(sweep, SizeIs(2)) << "each set has the whole search";
    EXPECT_EQ(sweep[0].split, 1);
    EXPECT_TRUE(sweep[0].chosen && sweep[0].within && sweep[1].within);
    EXPECT_FALSE(sweep[1].chosen);
    ASSERT_THAT(sweep[1].figures, SizeIs(2));
    EXPECT_EQ(sweep[1].figures[1].cell, "continuation");
    EXPECT_EQ(sweep[1].figures[1].length, 336);
    EXPECT_EQ(sweep[1].figures[1].tail, 64);
    EXPECT_EQ(sweep[1].figures[1].count, 5);
    EXPECT_NE(sweep[0].figures[1].mean, sweep[1].figures[1].mean);
  }
  const auto records = eval::ParseRecords(base::ReadFile(Path("maps/sweep.jsonl")).value()).value();
  EXPECT_THAT(records, SizeIs(2 * 2 * 2)) << "splits, ridge and identity, windows";
  EXPECT_FALSE(std::filesystem::exists(Path("maps/rows")));
  EXPECT_FALSE(std::filesystem::exists(Path("maps/sweep.jsonl.partial")));
}

// In the folder of rows: another's file, and rows that a longer run kept there.
TEST_F(SweepCliTest, AutoRemovesItsOwnRowsAlone) {
  const std::string notes = Path("maps/rows/notes.txt"), kept = Path("maps/rows/00009.safetensors");
  std::filesystem::create_directories(Path("maps/rows"));
  std::ofstream(notes) << "mine";
  std::ofstream(kept) << "of a longer run";
  const absl::Status status = FitAuto({"--max_loss", "100", "--min_needle", "0", "--candidates", "2"});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(std::filesystem::exists(notes) && std::filesystem::exists(kept));
  EXPECT_FALSE(std::filesystem::exists(Path("maps/rows/00000.safetensors")));
  EXPECT_EQ(Manifest(2).split, 2) << "one candidate has a folder of its own too";
  EXPECT_FALSE(std::filesystem::exists(Path("maps/ridgefill.json")));
}

TEST_F(SweepCliTest, ASecondSearchBeginsItsRecordsAnewAndLeavesTheFirstOnesSets) {
  ASSERT_TRUE(FitAuto({"--max_loss", "100", "--min_needle", "0", "--candidates", "1"}).ok());
  EXPECT_TRUE(Search(1)[0].chosen);
  const std::string first = base::ReadFile(Path("maps/split-1/ridgefill.json")).value();
  ASSERT_TRUE(FitAuto({"--max_loss", "100", "--min_needle", "0", "--candidates", "2"}).ok());
  EXPECT_TRUE(Search(2)[0].chosen);
  EXPECT_EQ(base::ReadFile(Path("maps/split-1/ridgefill.json")).value(), first) << "its digest is its name";
  const auto records = eval::ParseRecords(base::ReadFile(Path("maps/sweep.jsonl")).value()).value();
  EXPECT_THAT(records, SizeIs(2 * 2));
  for (const eval::Record& r : records) EXPECT_EQ(r["split"], 2);
}

TEST_F(SweepCliTest, WhatIsMeasuredWasNotFitted) {
  // TextFiles looks into subfolders: the folder of both has the held-out text too.
  const absl::Status both = FitAuto({"--corpus", folder_, "--min_needle", "0"});
  EXPECT_EQ(ReasonOf(both), "FIT_HELDOUT") << both;
  EXPECT_THAT(std::string(both.message()), HasSubstr(Path("heldout/text.txt")));
  ASSERT_TRUE(Fit("1,2", {"--corpus", Path("heldout"), "--rows_folder", Path("kept")}).ok());
  const absl::Status merged = FitAuto({"--merge", Path("kept"), "--min_needle", "0"});
  EXPECT_EQ(ReasonOf(merged), "FIT_HELDOUT") << merged;
}

TEST_F(SweepCliTest, InspectPrintsASetWhoseSearchIsDamaged) {
  ASSERT_TRUE(Fit("1,2", {}).ok());
  const std::string path = Path("maps/split-1/ridgefill.json");
  std::string text = base::ReadFile(path).value();
  text.insert(text.find('{') + 1, "\"sweep\": 3,");
  std::ofstream(path) << text;
  testing::internal::CaptureStdout();
  const absl::Status status = RunCommand({"inspect", Path("maps/split-1")});
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("split          1 of 4 layers"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("sweep"));
}

TEST_F(SweepCliTest, WithNoneInsideTheBoundsTheSetsAreKeptAndTheFiguresNamed) {
  const absl::Status status = FitAuto({"--max_loss=-100", "--min_needle", "0"});
  EXPECT_EQ(ReasonOf(status), "FIT_NO_SPLIT") << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(Path("maps")), HasSubstr("split 1: continuation"),
                    HasSubstr("split 2: continuation"), HasSubstr("would do with max_loss")));
  for (const int split : {1, 2}) {
    const std::vector<ridge::SweptSplit> sweep = Search(split);
    ASSERT_THAT(sweep, SizeIs(2));
    for (const ridge::SweptSplit& swept : sweep) EXPECT_FALSE(swept.within || swept.chosen);
  }
}

TEST_F(SweepCliTest, NeedlesCountBesideTheLoss) {
  const absl::Status status =
      FitAuto({"--max_loss", "100", "--items", "1", "--tasks", "single", "--needle_length", "900"});
  EXPECT_EQ(ReasonOf(status), "FIT_NO_SPLIT") << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("split 1: single: exact itself solves no item; split 2: single:"));
  const std::vector<ridge::SweptSplit> sweep = Search(2);
  ASSERT_THAT(sweep, SizeIs(2));
  ASSERT_THAT(sweep[1].figures, SizeIs(3));
  EXPECT_EQ(sweep[1].figures[2].measure, "needle");
  EXPECT_EQ(sweep[1].figures[2].length, 900);
}

TEST_F(SweepCliTest, WhatAnAutomaticSplitIsMeasuredOnIsCheckedBeforeTheFit) {
  EXPECT_EQ(ReasonOf(FitAuto({"--heldout", Path("nowhere")})), "CORPUS_EMPTY");
  EXPECT_EQ(ReasonOf(FitAuto({"--length", "300", "--min_needle", "0"})), "EVAL_WINDOWS");
  EXPECT_EQ(ReasonOf(FitAuto({"--tasks", "all"})), "EVAL_FLAG");
  EXPECT_EQ(ReasonOf(FitAuto({"--documents", "4", "--min_needle", "0"})), "FIT_DOCUMENTS");
  EXPECT_EQ(ReasonOf(FitAuto({"--needle_length", "4096"})), "EVAL_LENGTH");
  EXPECT_FALSE(std::filesystem::exists(Path("maps")));
  const absl::Status not_auto = Fit("1", {"--max_loss", "0.1"});
  EXPECT_EQ(ReasonOf(not_auto), "FIT_SPLIT");
  EXPECT_THAT(std::string(not_auto.message()), HasSubstr("--max_loss"));
  EXPECT_EQ(ReasonOf(Fit("auto,1", {})), "FIT_SPLIT");
  EXPECT_EQ(ReasonOf(Fit("middle", {})), "FIT_SPLIT");
}

TEST_F(SweepCliTest, ASweepGoesOnWhereItWasAndIsDrawn) {
  ASSERT_TRUE(Fit("1,2", {}).ok());
  EXPECT_THAT(Search(1), IsEmpty());
  const std::vector<std::string> words = {"--splits", Path("maps/split-2"), Path("maps/split-1"), "--out",
                                          Path("sweep.jsonl")};
  const absl::Status status = Sweep(words);
  ASSERT_TRUE(status.ok()) << status;
  const std::string lines = base::ReadFile(Path("sweep.jsonl")).value();
  const auto records = eval::ParseRecords(lines).value();
  ASSERT_THAT(records, SizeIs(2 * 2 * 3 * 2)) << "splits, tails, two shares and identity, windows";
  for (const eval::Record& r : records) {
    EXPECT_EQ(r["maps"], Manifest(r["split"].get<int>()).digest.substr(0, 12));
    EXPECT_GT(r["ttft_ratio"].get<double>(), 0);
  }
  const std::string items = base::ReadFile(Path("sweep.jsonl.partial")).value();
  ASSERT_TRUE(Sweep(words).ok());
  EXPECT_EQ(base::ReadFile(Path("sweep.jsonl.partial")).value(), items) << "nothing was computed again";
  EXPECT_EQ(base::ReadFile(Path("sweep.jsonl")).value(), lines) << "nor timed again";

  testing::internal::CaptureStdout();
  ASSERT_TRUE(RunCommand({"eval", "plot", Path("sweep.jsonl"), Path("plots")}).ok());
  testing::internal::GetCapturedStdout();
  for (const char* chart :
       {"pareto-tail-n128", "pareto-continuation-n128", "pareto-continuation-n128-identity"}) {
    const std::string svg = base::ReadFile(absl::StrCat(Path("plots/"), chart, ".svg")).value();
    EXPECT_THAT(svg, AllOf(HasSubstr("</svg>"), HasSubstr("exact")));
  }
}

TEST_F(SweepCliTest, ASweepRefusesWhatItCannotTellApart) {
  ASSERT_TRUE(Fit("1,2", {}).ok());
  const std::string one = Path("maps/split-1");
  EXPECT_EQ(ReasonOf(Sweep({"--splits", one, one})), "EVAL_SPLITS");
  EXPECT_EQ(ReasonOf(Sweep({"--splits", "none"})), "EVAL_SPLITS");
  EXPECT_EQ(ReasonOf(Sweep({"--splits", one, "--maps", one})), "EVAL_FLAG");
  EXPECT_EQ(ReasonOf(Sweep({"--splits", one, "--selectors", "best"})), "EVAL_FLAG");
  EXPECT_EQ(ReasonOf(Sweep({"--splits", Path("nowhere")})), "MAPS_NOT_FOUND");
  EXPECT_THROW(Sweep({"--splits", one, "--context_tokens", "64"}).IgnoreError(), CLI::ParseError)
      << "it has no effect here";
}

TEST(CandidateSplits, LieFromTheMiddleToThreeQuarters) {
  EXPECT_THAT(CandidateSplits(30), ElementsAre(15, 16, 17, 18, 19, 20, 21, 22));
  EXPECT_THAT(CandidateSplits(28), ElementsAre(14, 15, 16, 17, 18, 19, 20, 21));
  EXPECT_THAT(CandidateSplits(80), ElementsAre(40, 43, 46, 49, 52, 55, 58));
  EXPECT_THAT(CandidateSplits(4), ElementsAre(2));
  EXPECT_THAT(CandidateSplits(3), ElementsAre(1));
  EXPECT_THAT(CandidateSplits(2), IsEmpty());
}

}  // namespace
}  // namespace ridgefill::cli
