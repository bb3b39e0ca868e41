#include "engine/fit/sums.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "engine/base/file.h"
#include "engine/base/rng.h"
#include "engine/base/status.h"

namespace ridgefill::fit {
namespace {

using testing::HasSubstr;

std::string ReasonOf(const absl::Status& status) {
  const auto detail = base::GetErrorDetail(status);
  return detail ? detail->reason : status.ToString();
}

SumsKey Key() {
  SumsKey key;
  key.model = {"tiny", "llama", "4 layers, 8 wide", "tok", "weights"};
  key.layers = 4, key.hidden = 8, key.kv_width = 3, key.split = 1;
  key.outlier_threshold = 12.3f, key.outlier_ratio = 3.1f;
  return key;
}

Sums RandomSums(uint64_t seed) {
  base::Rng rng(seed);
  Sums sums(Key());
  sums.rows = 1 + static_cast<int64_t>(rng.NextBelow(100));
  const auto fill = [&](std::vector<double>& values) {
    for (double& value : values) value = rng.NextDouble() * 1e9 - 1e3;
  };
  fill(sums.x), fill(sums.xx);
  for (LayerSums& layer : sums.late) fill(layer.y), fill(layer.yy), fill(layer.xy);
  return sums;
}

void ExpectEqual(const Sums& got, const Sums& want) {
  EXPECT_EQ(got.rows, want.rows);
  EXPECT_EQ(got.x, want.x);
  EXPECT_EQ(got.xx, want.xx);
  ASSERT_EQ(got.late.size(), want.late.size());
  for (size_t i = 0; i < got.late.size(); ++i) {
    EXPECT_EQ(got.late[i].y, want.late[i].y);
    EXPECT_EQ(got.late[i].yy, want.late[i].yy);
    EXPECT_EQ(got.late[i].xy, want.late[i].xy);
  }
}

class SumsTest : public testing::Test {
 public:
  ~SumsTest() override { std::filesystem::remove(path_); }

 protected:
  std::string path_ = testing::TempDir() + "/sums_test.safetensors";

  static SumsFile File() {
    SumsFile file;
    file.key = Key();
    file.corpus = "text";
    file.documents_digest = "abc";
    file.held_out_documents = 2;
    file.documents_done = 7;
    file.fit = RandomSums(1);
    file.held_out = RandomSums(2);
    return file;
  }
};

TEST_F(SumsTest, ComeBackBitForBit) {
  const SumsFile want = File();
  ASSERT_TRUE(SaveSums(path_, want).ok());
  const auto got = LoadSums(path_);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(CheckSameKey(want.key, got->key).ok());
  EXPECT_EQ(got->key.outlier_threshold, 12.3f);
  EXPECT_EQ(got->key.outlier_ratio, 3.1f);
  EXPECT_EQ(got->corpus, "text");
  EXPECT_EQ(got->documents_digest, "abc");
  EXPECT_EQ(got->held_out_documents, 2);
  EXPECT_EQ(got->documents_done, 7);
  ExpectEqual(got->fit, want.fit);
  ExpectEqual(got->held_out, want.held_out);
}

TEST_F(SumsTest, AddUpInPlace) {
  const Sums a = RandomSums(1), b = RandomSums(2);
  Sums sum = a;
  ASSERT_TRUE(Add(b, sum).ok());
  EXPECT_EQ(sum.rows, a.rows + b.rows);
  EXPECT_EQ(sum.xx[5], a.xx[5] + b.xx[5]);
  EXPECT_EQ(sum.late[1].xy[7], a.late[1].xy[7] + b.late[1].xy[7]);
  EXPECT_EQ(sum.late[0].yy[2], a.late[0].yy[2] + b.late[0].yy[2]);
  SumsKey other = Key();
  other.hidden = 9;
  Sums wrong(other);
  EXPECT_FALSE(Add(a, wrong).ok());
}

TEST_F(SumsTest, OtherKeysAreNamed) {
  const auto reason = [](auto change) {
    SumsKey other = Key();
    change(other);
    return ReasonOf(CheckSameKey(Key(), other));
  };
  EXPECT_EQ(reason([](SumsKey& k) { k.model.arch = "qwen2"; }), "SUMS_OTHER_MODEL");
  EXPECT_EQ(reason([](SumsKey& k) { k.model.dimensions = "x"; }), "SUMS_OTHER_MODEL");
  EXPECT_EQ(reason([](SumsKey& k) { k.model.tokenizer_digest = "x"; }), "SUMS_OTHER_MODEL");
  EXPECT_EQ(reason([](SumsKey& k) { k.model.weights_digest = "x"; }), "SUMS_OTHER_MODEL");
  EXPECT_EQ(reason([](SumsKey& k) { k.hidden = 9; }), "SUMS_OTHER_MODEL");
  EXPECT_EQ(reason([](SumsKey& k) { k.split = 2; }), "SUMS_OTHER_SPLIT");
  EXPECT_EQ(reason([](SumsKey& k) { k.outlier_threshold = 12.4f; }), "SUMS_OTHER_OUTLIERS");
  EXPECT_EQ(reason([](SumsKey& k) { k.outlier_ratio = 3.2f; }), "SUMS_OTHER_OUTLIER_RATIO");
  SumsKey renamed = Key();
  renamed.model.name = "other name";
  EXPECT_TRUE(CheckSameKey(Key(), renamed).ok());
}

TEST_F(SumsTest, FilesWithoutTheOutlierRatioAreToBeFittedAgain) {
  ASSERT_TRUE(SaveSums(path_, File()).ok());
  std::string bytes = base::ReadFile(path_).value();
  const size_t at = bytes.find("outlier_ratio");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 7, "OUTLIER");
  ASSERT_TRUE(base::WriteFileAtomically(path_, bytes).ok());
  const absl::Status status = LoadSums(path_).status();
  EXPECT_EQ(ReasonOf(status), "SUMS_HEADER");
  EXPECT_THAT(std::string(status.message()), HasSubstr("fit again"));
}

TEST_F(SumsTest, RefusesOtherFiles) {
  EXPECT_EQ(LoadSums(path_ + ".none").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(base::WriteFileAtomically(path_, std::string("\x02\0\0\0\0\0\0\0{}", 10)).ok());
  const absl::Status status = LoadSums(path_).status();
  EXPECT_EQ(ReasonOf(status), "SUMS_HEADER");
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));

  SumsFile file = File();
  file.key.hidden = 9;  // a header that disagrees with its tensors
  file.fit.x.resize(9), file.held_out.x.resize(9);
  EXPECT_FALSE(SaveSums(path_, file).ok());
}

}  // namespace
}  // namespace ridgefill::fit
