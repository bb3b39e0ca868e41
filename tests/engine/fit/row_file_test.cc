#include "engine/fit/row_file.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"

#include "engine/base/file.h"
#include "engine/base/rng.h"
#include "engine/base/status.h"
#include "engine/fit/samples.h"

namespace ridgefill::fit {
namespace {

using testing::HasSubstr;

std::string ReasonOf(const absl::Status& status) {
  const auto detail = base::GetErrorDetail(status);
  return detail ? detail->reason : status.ToString();
}

RowsKey Key() {
  RowsKey key;
  key.model = {"tiny", "llama", "4 layers, 8 wide", "tok", "weights"};
  key.layers = 4, key.hidden = 8, key.kv_width = 3, key.heads_kv = 1;
  key.splits = {1, 2};
  key.mass_distance = 5;
  return key;
}

DocumentRows Rows() {
  base::Rng rng(1);
  DocumentRows rows;
  rows.corpus = "text";
  rows.digest = "abc";
  rows.source = {"novel.txt", "def", 4096};
  rows.held_out = true;
  rows.tokens = 7;
  for (int split : {1, 2}) {
    for (int i = 0; i < 7 * 8; ++i) rows.hidden[split].push_back(static_cast<float>(rng.NextDouble()));
  }
  for (int layer : {2, 3}) {
    for (int i = 0; i < 7 * 6; ++i) rows.kv[layer].push_back(static_cast<uint16_t>(rng.NextBelow(0x7f80)));
    for (int i = 0; i < 7; ++i) rows.mass[layer].push_back(static_cast<float>(rng.NextDouble()));
  }
  return rows;
}

class RowFileTest : public testing::Test {
 public:
  ~RowFileTest() override { std::filesystem::remove(path_); }

 protected:
  const std::string path_ = absl::StrCat(testing::TempDir(), "/row_file_test.", getpid(), ".safetensors");
};

TEST_F(RowFileTest, ComesBackBitForBit) {
  const DocumentRows want = Rows();
  ASSERT_TRUE(SaveRows(path_, Key(), want).ok());
  const auto got = RowFile::Open(path_);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(CheckServes(Key(), (*got)->key()).ok());
  EXPECT_EQ((*got)->corpus(), "text");
  EXPECT_EQ((*got)->digest(), "abc");
  EXPECT_TRUE((*got)->held_out());
  EXPECT_EQ((*got)->tokens(), 7);
  EXPECT_EQ((*got)->source().file, "novel.txt");
  EXPECT_EQ((*got)->source().digest, "def");
  EXPECT_EQ((*got)->source().begin, 4096);
  for (int split : {1, 2}) EXPECT_EQ((*got)->Hidden(split), absl::MakeConstSpan(want.hidden.at(split)));
  for (int layer : {2, 3}) {
    EXPECT_EQ((*got)->Kv(layer), absl::MakeConstSpan(want.kv.at(layer)));
    EXPECT_EQ((*got)->Mass(layer), absl::MakeConstSpan(want.mass.at(layer)));
  }
}

TEST_F(RowFileTest, OlderFilesDoNotSayWhereTheirTextIsFrom) {
  DocumentRows rows = Rows();
  rows.source = {};
  ASSERT_TRUE(SaveRows(path_, Key(), rows).ok());
  EXPECT_EQ(base::ReadFile(path_).value().find("source"), std::string::npos);
  const auto got = RowFile::Open(path_);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ((*got)->source().digest, "");
}

TEST_F(RowFileTest, RefusesValuesThatNoModelGives) {
  const auto refused = [&](auto change) {
    DocumentRows rows = Rows();
    change(rows);
    EXPECT_TRUE(SaveRows(path_, Key(), rows).ok());
    const absl::Status status = RowFile::Open(path_).status();
    return absl::StrCat(ReasonOf(status), " ", std::string(status.message()));
  };
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  EXPECT_THAT(refused([&](DocumentRows& r) { r.hidden[2][3 * 8 + 5] = nan; }),
              testing::AllOf(HasSubstr("ROWS_VALUES"), HasSubstr(path_),
                             HasSubstr("hidden.2 has a value in row 3, column 5")));
  EXPECT_THAT(refused([&](DocumentRows& r) { r.mass[3][6] = inf; }), HasSubstr("mass.3"));
  EXPECT_THAT(refused([&](DocumentRows& r) { r.mass[2][1] = -1e-3f; }), HasSubstr("mass.2"));
  EXPECT_THAT(refused([&](DocumentRows& r) { r.kv[3][41] = 0x7f80; }), HasSubstr("kv.3"));
  EXPECT_THAT(refused([&](DocumentRows& r) { r.kv[2][0] = 0xffff; }), HasSubstr("kv.2"));
}

// No row, or one, which is never fitted.
TEST_F(RowFileTest, RefusesDocumentsWithoutRowsToFit) {
  for (int64_t tokens : {0, 1}) {
    DocumentRows rows = Rows();
    rows.tokens = tokens;
    for (auto* values : {&rows.hidden, &rows.mass}) {
      for (auto& [index, of_one] : *values) of_one.resize(tokens * (values == &rows.hidden ? 8 : 1));
    }
    for (auto& [layer, kv] : rows.kv) kv.resize(tokens * 6);
    ASSERT_TRUE(SaveRows(path_, Key(), rows).ok());
    const absl::Status status = RowFile::Open(path_).status();
    EXPECT_EQ(ReasonOf(status), "ROWS_HEADER") << tokens;
    EXPECT_THAT(std::string(status.message()), HasSubstr("at least 2"));
  }
}

// Damage is refused, or gives values that a fit can take: never a crash.
TEST_F(RowFileTest, AnyDamagedByteIsRefusedOrHarmless) {
  ASSERT_TRUE(SaveRows(path_, Key(), Rows()).ok());
  const std::string whole = base::ReadFile(path_).value();
  base::Rng rng(2);
  int opened = 0, refused = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string bytes = whole;
    for (int flips = static_cast<int>(rng.NextBelow(3)); flips >= 0; --flips) {
      bytes[rng.NextBelow(bytes.size())] = static_cast<char>(rng.NextBelow(256));
    }
    if (rng.NextBelow(8) == 0) bytes.resize(rng.NextBelow(bytes.size()));
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    const auto file = RowFile::Open(path_);
    (file.ok() ? opened : refused) += 1;
    if (!file.ok() || !CheckServes(Key(), (*file)->key()).ok()) continue;
    const RowFile* const files[] = {file->get()};
    const Samples samples = MakeSamples(files, 1, OutlierThreshold(files, 1, 3), true);
    for (float weight : Weights(samples.rows, 2)) EXPECT_GE(weight, 0);
    EXPECT_EQ(Targets(samples.rows, 3).size(), samples.rows.size() * 6);
  }
  EXPECT_GT(opened, 30);
  EXPECT_GT(refused, 100);
}

TEST_F(RowFileTest, OtherKeysAreNamed) {
  const auto reason = [](auto change) {
    RowsKey other = Key();
    change(other);
    return ReasonOf(CheckServes(Key(), other));
  };
  EXPECT_EQ(reason([](RowsKey& k) { k.model.arch = "qwen2"; }), "ROWS_OTHER_MODEL");
  EXPECT_EQ(reason([](RowsKey& k) { k.model.dimensions = "x"; }), "ROWS_OTHER_MODEL");
  EXPECT_EQ(reason([](RowsKey& k) { k.model.tokenizer_digest = "x"; }), "ROWS_OTHER_MODEL");
  EXPECT_EQ(reason([](RowsKey& k) { k.model.weights_digest = "x"; }), "ROWS_OTHER_MODEL");
  EXPECT_EQ(reason([](RowsKey& k) { k.hidden = 9; }), "ROWS_OTHER_MODEL");
  EXPECT_EQ(reason([](RowsKey& k) { k.splits = {1}; }), "ROWS_OTHER_SPLITS");
  EXPECT_EQ(reason([](RowsKey& k) { k.mass_distance = 6; }), "ROWS_OTHER_DISTANCE");
  RowsKey more = Key();  // rows of further splits serve
  more.splits.push_back(more.splits.back() + 1);
  EXPECT_TRUE(CheckServes(Key(), more).ok());
  EXPECT_EQ(ReasonOf(CheckServes(more, Key())), "ROWS_OTHER_SPLITS");
  RowsKey renamed = Key();
  renamed.model.name = "other name";
  EXPECT_TRUE(CheckServes(Key(), renamed).ok());
}

TEST_F(RowFileTest, RefusesOtherFiles) {
  EXPECT_EQ(RowFile::Open(path_ + ".none").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(base::WriteFileAtomically(path_, std::string("\x02\0\0\0\0\0\0\0{}", 10)).ok());
  const absl::Status status = RowFile::Open(path_).status();
  EXPECT_EQ(ReasonOf(status), "ROWS_HEADER");
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));

  const auto changed = [&](auto change) {
    RowsKey key = Key();
    DocumentRows rows = Rows();
    EXPECT_TRUE(SaveRows(path_, key, rows).ok());
    std::string bytes = base::ReadFile(path_).value();
    change(bytes);
    EXPECT_TRUE(base::WriteFileAtomically(path_, bytes).ok());
    return ReasonOf(RowFile::Open(path_).status());
  };
  const auto replace = [](std::string& bytes, const std::string& from, const std::string& to) {
    const size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bytes.replace(at, from.size(), to);
  };
  EXPECT_EQ(changed([&](std::string& b) { replace(b, "\\\"tokens\\\":7", "\\\"tokens\\\":8"); }),
            "ROWS_SHAPE");
  EXPECT_EQ(changed([&](std::string& b) { replace(b, "[1,2]", "[2,1]"); }), "ROWS_HEADER");
  EXPECT_EQ(changed([&](std::string& b) { replace(b, "\\\"begin\\\":4096", "\\\"begin\\\":-409"); }),
            "ROWS_HEADER");
  EXPECT_EQ(changed([&](std::string& b) { replace(b, "[1,2]", "[1,4]"); }), "ROWS_HEADER");
  EXPECT_EQ(changed([&](std::string& b) { replace(b, "\"mass.3\"", "\"mess.3\""); }), "MISSING_TENSOR");
}

}  // namespace
}  // namespace ridgefill::fit
