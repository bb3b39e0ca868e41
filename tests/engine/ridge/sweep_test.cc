#include "engine/ridge/sweep.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/base/status.h"
#include "engine/formats/json.h"
#include "engine/ridge/manifest.h"

namespace ridgefill::ridge {
namespace {

using formats::Json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::string ReasonOf(const absl::Status& status) {
  const auto detail = base::GetErrorDetail(status);
  return detail ? detail->reason : status.ToString();
}

class SweepTest : public testing::Test {
 public:
  ~SweepTest() override { std::filesystem::remove_all(folder_); }

 protected:
  SweepTest() {
    folder_ = absl::StrCat(testing::TempDir(), "/ridge_sweep_test.", getpid(), ".",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  static MapSetManifest Manifest(int mixture) {
    MapSetManifest m;
    m.model = {"tiny", "llama", "5 layers, ...", "tok", "weights"};
    m.layers = 5, m.hidden = 8, m.kv_width = 4, m.split = 2;
    m.mixture = mixture;
    m.outlier_threshold = 123.456f;
    return m;
  }
  static std::vector<SweptSplit> Some() {
    const SweepFigure loss = {"nll", "continuation", 4096, 512, 16, 0.0625, -0.5, 0.75};
    const SweepFigure needle = {"needle", "single", 1024, 256, 0, 0, 0, 0};
    return {{1, false, false, {loss, needle}}, {2, true, true, {loss}}, {4, true, false, {}}};
  }
  void WriteManifest(int mixture = 1) const {
    const std::string text = ManifestText(Manifest(mixture), {{"maps.safetensors", std::string(64, 'a')}});
    ASSERT_TRUE(base::WriteFileAtomically(Path(), text).ok());
  }
  std::string Path() const { return folder_ + "/ridgefill.json"; }
  Json Read() const { return formats::ParseJson(base::ReadFile(Path()).value()).value(); }

  std::string folder_;
};

TEST_F(SweepTest, ComesBackAndChangesNothingElse) {
  for (const int mixture : {1, 3}) {
    WriteManifest(mixture);
    EXPECT_THAT(ReadSweep(folder_).value(), IsEmpty());
    const Json before = Read();
    ASSERT_TRUE(StoreSweep(folder_, {{3, false, false, {}}}).ok());
    ASSERT_TRUE(StoreSweep(folder_, Some()).ok());
    const std::vector<SweptSplit> got = ReadSweep(folder_).value();
    ASSERT_THAT(got, SizeIs(3)) << "in place of the older one";
    EXPECT_EQ(got[1].split, 2);
    EXPECT_TRUE(got[1].within && got[1].chosen && got[2].within);
    EXPECT_FALSE(got[0].within || got[0].chosen || got[2].chosen);
    ASSERT_THAT(got[0].figures, SizeIs(2));
    const SweepFigure& loss = got[0].figures[0];
    EXPECT_EQ(loss.measure, "nll");
    EXPECT_EQ(loss.cell, "continuation");
    EXPECT_EQ(loss.length, 4096);
    EXPECT_EQ(loss.tail, 512);
    EXPECT_EQ(loss.count, 16);
    EXPECT_EQ(loss.mean, 0.0625);
    EXPECT_EQ(loss.low, -0.5);
    EXPECT_EQ(loss.high, 0.75);
    Json after = Read();
    after.erase("sweep");
    EXPECT_EQ(after, before) << "the version among it: older builds read the set";
    const auto manifest = ParseManifest(base::ReadFile(Path()).value());
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_EQ(manifest->manifest.split, 2);
  }
}

TEST_F(SweepTest, RefusesWhatMakesNoSenseNamingTheField) {
  const auto changed = [&](auto change) {
    WriteManifest();
    EXPECT_TRUE(StoreSweep(folder_, Some()).ok());
    Json json = Read();
    change(json["sweep"]);
    return ParseSweep(json.dump()).status();
  };
  const auto expect = [](const absl::Status& status, absl::string_view reason, absl::string_view word) {
    EXPECT_EQ(ReasonOf(status), reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(word)));
  };
  EXPECT_TRUE(changed([](Json&) {}).ok());
  expect(changed([](Json& j) { j = "all"; }), "JSON_TYPE", "sweep");
  expect(changed([](Json& j) { j[0] = Json::object(); }), "JSON_MISSING_KEY", "split");
  EXPECT_FALSE(changed([](Json& j) { j[0] = 3; }).ok());
  expect(changed([](Json& j) { j[0]["split"] = 0; }), "MAPS_MANIFEST", "split");
  expect(changed([](Json& j) { j[2]["split"] = 5; }), "MAPS_MANIFEST", "[1, 4]");
  expect(changed([](Json& j) { j[1]["split"] = 1; }), "MAPS_MANIFEST", "ascend");
  expect(changed([](Json& j) { j[2]["chosen"] = true; }), "MAPS_MANIFEST", "split 4 is chosen beside");
  expect(changed([](Json& j) { j[1]["within"] = false; }), "MAPS_MANIFEST", "split 2");
  expect(changed([](Json& j) { j[1].erase("within"); }), "JSON_MISSING_KEY", "within");
  expect(changed([](Json& j) { j[0].erase("figures"); }), "JSON_MISSING_KEY", "figures");
  expect(changed([](Json& j) { j[0]["figures"][0]["low"] = 1; }), "MAPS_MANIFEST", "interval");
  expect(changed([](Json& j) { j[0]["figures"][0]["mean"] = "0"; }), "JSON_TYPE", "mean");
  expect(changed([](Json& j) { j[0]["figures"][0]["count"] = -1; }), "MAPS_MANIFEST", "count");
  expect(changed([](Json& j) { j[0]["figures"][0]["tail"] = 0; }), "MAPS_MANIFEST", "tail");
  expect(changed([](Json& j) { j[0]["figures"][0]["measure"] = 1; }), "JSON_TYPE", "measure");
}

// It is for people and routers that choose among sets: a set serves without.
TEST_F(SweepTest, ADamagedOneKeepsNoSetFromLoading) {
  WriteManifest();
  Json json = Read();
  json["sweep"] = "all of them";
  EXPECT_TRUE(ParseManifest(json.dump()).ok());
  ASSERT_TRUE(base::WriteFileAtomically(Path(), json.dump()).ok());
  const absl::Status status = ReadSweep(folder_).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path()));
}

}  // namespace
}  // namespace ridgefill::ridge
