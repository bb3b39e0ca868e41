// A run that was killed and started again gives the records of one that was not.
#include "engine/eval/measure.h"

#include <gmock/gmock.h>

#include <fstream>

#include "engine/base/file.h"
#include "engine/base/status.h"
#include "engine/eval/text.h"
#include "tests/engine/eval/tiny_fixture.h"

namespace ridgefill::eval {
namespace {

using testing::HasSubstr;

class MeasureTest : public TinyFixture {
 protected:
  MeasureTest() : maps_(RandomMaps()) {
    subject_ = Subject::Create(*model_, *maps_, {.max_tokens = kTokens, .chunk_rows = 64}).value();
    std::filesystem::create_directories(folder_);
  }

  // What the files hold and how many items were computed.
  struct Outcome {
    std::string records, items;
    int computed = 0;
  };
  Outcome Evaluate(int64_t tail = 30) {
    TextOptions options;
    options.tails = {tail};
    options.continuation = 10;
    const TextMeasure measure = TextMeasure::Create(documents_, options).value();
    Outcome out;
    {
      const auto items = JsonLog::Open(Path("items")).value(),
                 records = JsonLog::Open(Path("records")).value();
      RunOptions run;
      run.items = items.get();
      run.records = records.get();
      run.progress = [&](const Progress& progress) {
        out.computed += progress.resumed ? 0 : 1;
        return absl::OkStatus();
      };
      EXPECT_TRUE(RunMeasure(measure, *subject_, run).ok());
    }
    out.records = base::ReadFile(Path("records")).value();
    out.items = base::ReadFile(Path("items")).value();
    return out;
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary | std::ios::trunc) << bytes;
  }

  std::unique_ptr<ridge::DeviceMaps> maps_;
  std::unique_ptr<Subject> subject_;
};

TEST_F(MeasureTest, GoesOnWhereItWasKilled) {
  const Outcome whole = Evaluate();
  EXPECT_EQ(whole.computed, 4);
  const size_t second = whole.items.find('\n', whole.items.find('\n') + 1) + 1;
  // In the middle of the third line, and in the middle of the first record.
  Write("items", whole.items.substr(0, second + 100));
  Write("records", whole.records.substr(0, 50));
  const Outcome resumed = Evaluate();
  EXPECT_EQ(resumed.computed, 2);
  EXPECT_EQ(resumed.items, whole.items);
  EXPECT_EQ(resumed.records, whole.records);
}

TEST_F(MeasureTest, WhatIsThereIsNotWrittenAgain) {
  const Outcome once = Evaluate(), twice = Evaluate();
  EXPECT_EQ(twice.computed, 0);
  EXPECT_EQ(twice.items, once.items);
  EXPECT_EQ(twice.records, once.records);
}

TEST_F(MeasureTest, AnotherSettingSharesNothing) {
  Evaluate(30);
  EXPECT_EQ(Evaluate(31).computed, 4);
}

TEST_F(MeasureTest, MoreDocumentsTakeWhatIsThere) {
  const auto all = documents_;
  documents_.resize(3);
  EXPECT_EQ(Evaluate().computed, 3);
  documents_ = all;
  EXPECT_EQ(Evaluate().computed, 1);
}

TEST_F(MeasureTest, OneProcessAtATimeWritesAFile) {
  const auto first = JsonLog::Open(Path("records")).value();
  EXPECT_EQ(base::GetErrorDetail(JsonLog::Open(Path("records")).status())->reason, "EVAL_FILE_IN_USE");
}

// What --out names may be someone else's file: it is refused as it is.
TEST_F(MeasureTest, AFileThatIsNotOursIsLeftAsItIs) {
  const std::string files[] = {
      "notes without a line's end",
      "{\"some\": \"JSON\"}",
      "{\"key\":\"of another file\"}",
      "{\n  \"key\": 1\n}\n",
      "{\"key\":\"a\"}\nnot cut short, another text",
  };
  for (const std::string& bytes : files) {
    Write("records", bytes);
    EXPECT_EQ(base::GetErrorDetail(JsonLog::Open(Path("records")).status())->reason, "EVAL_FILE_DAMAGED")
        << bytes;
    EXPECT_EQ(base::ReadFile(Path("records")).value(), bytes);
  }
  for (const std::string tail : {"{", "{\"key\":\"b", "{\"key\":\"b\",\"x\":1}"}) {
    Write("records", "{\"key\":\"a\"}\n" + tail);
    ASSERT_TRUE(JsonLog::Open(Path("records")).ok()) << tail;
    EXPECT_EQ(base::ReadFile(Path("records")).value(), "{\"key\":\"a\"}\n");
  }
}

TEST_F(MeasureTest, ADamagedLineIsRefusedByNumber) {
  Write("records", "{\"key\":\"a\"}\nnonsense\n");
  const absl::Status status = JsonLog::Open(Path("records")).status();
  EXPECT_EQ(base::GetErrorDetail(status)->reason, "EVAL_FILE_DAMAGED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("line 2"));
}

}  // namespace
}  // namespace ridgefill::eval
