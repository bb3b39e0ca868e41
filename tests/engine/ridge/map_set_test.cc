#include "engine/ridge/map_set.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>

#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/base/float16.h"
#include "engine/base/rng.h"
#include "engine/base/sha256.h"
#include "engine/base/status.h"
#include "engine/formats/json.h"
#include "engine/formats/safetensors.h"
#include "engine/ridge/device_maps.h"
#include "engine/ridge/map_codec.h"

namespace ridgefill::ridge {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

std::string ReasonOf(const absl::Status& status) {
  const auto detail = base::GetErrorDetail(status);
  return detail ? detail->reason : status.ToString();
}

class MapSetTest : public testing::Test {
 public:
  ~MapSetTest() override { std::filesystem::remove_all(folder_); }

 protected:
  MapSetTest() {
    folder_ = absl::StrCat(testing::TempDir(), "/map_set_test.", getpid(), ".",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
  }

  static MapSetManifest Manifest(bool folded, const std::string& dtype) {
    MapSetManifest m;
    m.model = {"tiny", "llama", "5 layers, 136 wide, 4/2 heads of 34, vocab 99", "tok", "weights"};
    m.layers = 5, m.hidden = 136, m.kv_width = 68, m.split = 2;
    m.folded = folded;
    m.dtype = dtype;
    m.tail_default = 100, m.tail_minimum = 10, m.min_bulk = 20;
    m.outlier_ratio = 3.5f, m.outlier_threshold = 123.456f;
    m.fit_rows = 1000, m.fit_corpus = "some text";
    m.report = {{3, 0.99, 0.3, 0.9, 0.5, 0.003, 0.01},
                {4, 0.98, 0.4, 0.8, 0.6, 0.01, 0.03, 0.1, 0.3, 0.2, 0.5}};
    return m;
  }
  static MapSetManifest MixtureManifest(const std::string& dtype) {
    MapSetManifest m = Manifest(true, dtype);
    m.mixture = 3;
    m.previous_row = true;
    m.normalised = true;
    return m;
  }
  static Gate SomeGate(const MapSetManifest& m) {
    base::Rng rng(8);
    Gate gate;
    for (int i = 0; i < m.mixture * m.hidden; ++i)
      gate.weight.push_back(static_cast<float>(rng.NextDouble()));
    gate.bias = {0.25f, -1, 3};
    return gate;
  }

  static std::vector<LayerMap> Maps(const MapSetManifest& m) {
    base::Rng rng(7);
    std::vector<LayerMap> maps;
    const int64_t rows = m.folded ? 2 * m.kv_width * m.mixture : m.hidden;
    for (int layer = m.split + 1; layer < m.layers; ++layer) {
      LayerMap map;
      map.layer = layer;
      for (int64_t i = 0; i < rows * MapInputs(m); ++i)
        map.weight.push_back(static_cast<float>(rng.NextDouble()) - 0.5f);
      for (int i = 0; i < rows; ++i) map.bias.push_back(static_cast<float>(rng.NextDouble()));
      maps.push_back(std::move(map));
    }
    return maps;
  }

  void Save(const MapSetManifest& m) {
    ASSERT_TRUE(SaveMapSet(folder_, m, Maps(m), m.mixture > 1 ? SomeGate(m) : Gate()).ok());
  }

  std::string ManifestPath() const { return folder_ + "/ridgefill.json"; }
  formats::Json ReadManifest() const {
    return formats::ParseJson(base::ReadFile(ManifestPath()).value()).value();
  }
  void WriteManifest(const formats::Json& json) {
    std::filesystem::create_directories(folder_);
    ASSERT_TRUE(base::WriteFileAtomically(ManifestPath(), json.dump()).ok());
  }
  // Loads after `change` was made to the manifest.
  template <typename Change>
  absl::Status LoadChanged(Change change) {
    formats::Json json = ReadManifest();
    change(json);
    WriteManifest(json);
    return MapSet::Load(folder_).status();
  }
  std::string OnlyTensorFile() const { return ReadManifest()["files"].begin().key(); }

  std::string folder_;
};

TEST_F(MapSetTest, ComesBackAsWritten) {
  for (bool folded : {true, false}) {
    const MapSetManifest want = Manifest(folded, "bf16");
    Save(want);
    const auto set = MapSet::Load(folder_);
    ASSERT_TRUE(set.ok()) << set.status();
    const MapSetManifest& got = (*set)->manifest();
    EXPECT_EQ(got.model.name, want.model.name);
    EXPECT_EQ(got.model.arch, want.model.arch);
    EXPECT_EQ(got.model.dimensions, want.model.dimensions);
    EXPECT_EQ(got.model.tokenizer_digest, want.model.tokenizer_digest);
    EXPECT_EQ(got.model.weights_digest, want.model.weights_digest);
    EXPECT_EQ(got.split, 2);
    EXPECT_EQ(got.folded, folded);
    EXPECT_EQ(got.tail_default, 100);
    EXPECT_EQ(got.tail_minimum, 10);
    EXPECT_EQ(got.min_bulk, 20);
    EXPECT_EQ(got.outlier_ratio, 3.5f);
    EXPECT_EQ(got.outlier_threshold, 123.456f);
    EXPECT_EQ(got.fit_rows, 1000);
    EXPECT_EQ(got.fit_corpus, "some text");
    ASSERT_EQ(got.report.size(), 2u);
    EXPECT_EQ(got.report[1].layer, 4);
    EXPECT_EQ(got.report[1].v_penalty, 0.03);
    EXPECT_EQ(got.report[1].v_shrinkage, 0.3);
    EXPECT_EQ(got.report[1].k_residual, 0.2);
    EXPECT_EQ(got.mixture, 1);
    EXPECT_FALSE(got.previous_row);
    EXPECT_FALSE(got.normalised);
    EXPECT_EQ(ReadManifest()["format_version"], 1) << "older builds read what they can";
    EXPECT_EQ(got.digest, base::Sha256HexOfFile(ManifestPath()).value());
    for (const LayerMap& map : Maps(want)) {
      const auto read = (*set)->ReadLayer(map.layer);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->bias, map.bias);
      ASSERT_EQ(read->weight.size(), map.weight.size());
      for (size_t i = 0; i < map.weight.size(); ++i) {
        ASSERT_EQ(read->weight[i], base::BF16ToF32(base::F32ToBF16(map.weight[i])));
      }
    }
    EXPECT_EQ(ReasonOf((*set)->ReadLayer(2).status()), "MAPS_LAYER_RANGE");
    EXPECT_EQ(ReasonOf((*set)->ReadLayer(5).status()), "MAPS_LAYER_RANGE");
  }
}

TEST_F(MapSetTest, AMixtureComesBackWithItsGate) {
  for (const std::string dtype : {"bf16", "int8"}) {
    const MapSetManifest want = MixtureManifest(dtype);
    Save(want);
    const auto set = MapSet::Load(folder_);
    ASSERT_TRUE(set.ok()) << set.status();
    EXPECT_EQ((*set)->manifest().mixture, 3);
    EXPECT_TRUE((*set)->manifest().previous_row);
    EXPECT_TRUE((*set)->manifest().normalised);
    EXPECT_EQ(ReadManifest()["format_version"], 3);
    const auto gate = (*set)->ReadGate();
    ASSERT_TRUE(gate.ok()) << gate.status();
    EXPECT_EQ(gate->weight, SomeGate(want).weight);
    EXPECT_EQ(gate->bias, SomeGate(want).bias);
    const auto read = (*set)->ReadLayer(4);
    ASSERT_TRUE(read.ok()) << read.status();
    const LayerMap map = Maps(want)[1];
    EXPECT_EQ(read->bias, map.bias);
    ASSERT_EQ(read->weight.size(), map.weight.size());
    for (size_t i = 0; i < map.weight.size(); ++i) ASSERT_NEAR(read->weight[i], map.weight[i], 0.5 / 127);
  }
}

// Builds of before must not read over what would make them fill wrongly.
TEST_F(MapSetTest, TheFormatVersionIsTheLeastThatKnowsAllOfTheSet) {
  for (const bool previous_row : {false, true}) {
    for (const bool normalised : {false, true}) {
      MapSetManifest m = Manifest(true, "bf16");
      m.previous_row = previous_row;
      m.normalised = normalised;
      Save(m);
      EXPECT_EQ(ReadManifest()["format_version"], normalised ? 3 : previous_row ? 2 : 1);
      EXPECT_EQ(MapSet::Load(folder_).value()->manifest().normalised, normalised);
    }
  }
  // As some sets were written, which are in use.
  EXPECT_TRUE(LoadChanged([](auto& json) { json["format_version"] = 2; }).ok());
  EXPECT_TRUE(MapSet::Load(folder_).value()->manifest().normalised);
  const absl::Status refused = LoadChanged([](auto& json) { json["format_version"] = 1; });
  EXPECT_EQ(ReasonOf(refused), "MAPS_FORMAT_VERSION");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("normalised"));
}

TEST_F(MapSetTest, RefusesAMixtureThatIsNotWhole) {
  Save(MixtureManifest("bf16"));
  EXPECT_EQ(ReasonOf(LoadChanged([](auto& json) { json["mixture"] = 2; })), "MAPS_SHAPE");
  Save(MixtureManifest("bf16"));
  EXPECT_EQ(ReasonOf(LoadChanged([](auto& json) { json["previous_row"] = false; })), "MAPS_SHAPE");
  Save(MixtureManifest("bf16"));
  EXPECT_EQ(ReasonOf(LoadChanged([](auto& json) { json["mixture"] = 0; })), "MAPS_MANIFEST");
  Save(MixtureManifest("bf16"));
  EXPECT_EQ(ReasonOf(LoadChanged([](auto& json) { json["folded"] = false; })), "MAPS_MANIFEST");
  MapSetManifest no_previous = MixtureManifest("bf16");
  no_previous.mixture = 1;
  Save(no_previous);
  EXPECT_EQ(ReasonOf(LoadChanged([](auto& json) { json["mixture"] = 3; })), "MAPS_SHAPE");
}

TEST_F(MapSetTest, Int8StaysWithinHalfAStep) {
  const MapSetManifest m = Manifest(true, "int8");
  Save(m);
  const auto set = MapSet::Load(folder_);
  ASSERT_TRUE(set.ok()) << set.status();
  for (const LayerMap& map : Maps(m)) {
    const LayerMap read = (*set)->ReadLayer(map.layer).value();
    EXPECT_EQ(read.bias, map.bias);
    for (size_t i = 0; i < map.weight.size(); ++i) {
      // Half a step of 0.5 / 127, and what rounding the scale to bf16 (2^-9) adds to a code of up to 127.
      ASSERT_NEAR(read.weight[i], map.weight[i], 0.5 / 127 * (0.5 + 127.0 / 512));
    }
  }
}

TEST(Int8, RoundsAsStated) {
  // The first group's absmax is 127, so its scale is 1 and halves go to the even code; the short group of two
  // zeros has scale 1.
  std::vector<float> row(130, 0.0f);
  row[0] = -127.0f, row[1] = 0.5f, row[2] = 1.5f, row[3] = -2.5f, row[4] = 126.5f, row[5] = 2.51f;
  const Int8Weight weight = EncodeInt8(row, 130);
  ASSERT_EQ(weight.scale.size(), 2u);
  EXPECT_EQ(base::BF16ToF32(weight.scale[0]), 1.0f);
  EXPECT_EQ(base::BF16ToF32(weight.scale[1]), 1.0f);
  EXPECT_EQ(weight.codes[0], -127);
  EXPECT_EQ(weight.codes[1], 0);
  EXPECT_EQ(weight.codes[2], 2);
  EXPECT_EQ(weight.codes[3], -2);
  EXPECT_EQ(weight.codes[4], 126);
  EXPECT_EQ(weight.codes[5], 3);
}

TEST(Int8, CodesAreRoundedAgainstTheRoundedScale) {
  // absmax / 127 = 1 / 127 = 0.0078740157; in bf16 0.0078735352 (127 * 0.0078735352 = 0.99994): the code
  // of 1.0 is 127, that of 0.5 is 63.504 -> 64; against the unrounded scale it would be 63.5 -> 64 as well,
  // but 0.49999 (63.4999 unrounded, 63.5026 rounded) tells them apart.
  const std::vector<float> row = {1.0f, 0.49999f};
  const Int8Weight weight = EncodeInt8(row, 2);
  EXPECT_EQ(weight.scale[0], base::F32ToBF16(1.0f / 127.0f));
  EXPECT_EQ(weight.codes[0], 127);
  EXPECT_EQ(weight.codes[1], 64);
  std::vector<float> back(2);
  DecodeInt8(weight.codes, weight.scale, 2, absl::MakeSpan(back));
  EXPECT_EQ(back[1], 64 * base::BF16ToF32(weight.scale[0]));
}

TEST(Int8, ClampsWhatARoundedDownScaleWouldPushOver) {
  base::Rng rng(3);
  for (int i = 0; i < 1000; ++i) {
    const std::vector<float> row = {static_cast<float>(rng.NextDouble() * 10), -1e-3f};
    const Int8Weight weight = EncodeInt8(row, 2);
    EXPECT_GE(weight.codes[0], 126);
  }
}

TEST_F(MapSetTest, RefusesADamagedFileByName) {
  Save(Manifest(true, "bf16"));
  const std::string name = OnlyTensorFile();
  std::fstream file(folder_ + "/" + name, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x55');
  file.close();
  const absl::Status status = MapSet::Load(folder_).status();
  EXPECT_EQ(ReasonOf(status), "MAPS_DAMAGED");
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(name), HasSubstr("sha256")));
}

TEST_F(MapSetTest, RefusesAMissingFileByName) {
  Save(Manifest(true, "bf16"));
  const std::string name = OnlyTensorFile();
  std::filesystem::remove(folder_ + "/" + name);
  const absl::Status status = MapSet::Load(folder_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  const absl::Status none = MapSet::Load(folder_ + "/nowhere").status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.message()), HasSubstr("ridgefill.json"));
}

TEST_F(MapSetTest, RefusesNamesThatLeaveTheFolder) {
  Save(Manifest(true, "bf16"));
  const std::string digest(64, 'a');
  for (const char* name :
       {"../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".hidden", "", "a\\b"}) {
    const absl::Status status = LoadChanged([&](formats::Json& json) { json["files"] = {{name, digest}}; });
    EXPECT_EQ(ReasonOf(status), "MAPS_FILE_NAME") << name;
  }
  const absl::Status nul = LoadChanged([&](formats::Json& json) {
    json["files"] = {{std::string("a\0b", 3), digest}};
  });
  EXPECT_EQ(ReasonOf(nul), "MAPS_FILE_NAME");
}

TEST_F(MapSetTest, RefusesBadManifestsNamingTheField) {
  const auto changed = [&](auto change) {
    Save(Manifest(true, "bf16"));
    return LoadChanged(change);
  };
  using formats::Json;
  const auto expect = [](const absl::Status& status, absl::string_view reason, absl::string_view word) {
    EXPECT_EQ(ReasonOf(status), reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(word)));
  };
  expect(changed([](Json& j) { j["format_version"] = 4; }), "MAPS_FORMAT_VERSION", "4");
  expect(changed([](Json& j) { j["format_version"] = 4; }), "MAPS_FORMAT_VERSION", "this build reads 1 to 3");
  expect(changed([](Json& j) { j.erase("format_version"), j["format"] = 2; }), "MAPS_FORMAT_VERSION",
         "published format 2 is not supported; this build reads 1");
  expect(changed([](Json& j) { j.erase("format_version"); }), "JSON_MISSING_KEY", "format_version");
  expect(changed([](Json& j) { j["split"] = 5; }), "MAPS_MANIFEST", "split");
  expect(changed([](Json& j) { j["split"] = "2"; }), "JSON_TYPE", "split");
  expect(changed([](Json& j) { j["hidden"] = -1; }), "MAPS_MANIFEST", "hidden");
  expect(changed([](Json& j) { j["dtype"] = "fp4"; }), "MAPS_MANIFEST", "fp4");
  expect(changed([](Json& j) { j.erase("files"); }), "JSON_MISSING_KEY", "files");
  expect(changed([](Json& j) { j["files"] = Json::object(); }), "MAPS_MANIFEST", "files");
  expect(changed([](Json& j) { j["files"].begin().value() = "1234"; }), "MAPS_MANIFEST", "sha256");
  expect(changed([](Json& j) { j["outlier"]["threshold"] = -3; }), "MAPS_MANIFEST", "outlier/threshold");
  expect(changed([](Json& j) { j["model"].erase("tokenizer_digest"); }), "JSON_MISSING_KEY",
         "tokenizer_digest");
  // Dimensions and layers that the tensors do not have.
  expect(changed([](Json& j) { j["layers"] = 6; }), "MAPS_LAYER_MISSING", "layer 5");
  expect(changed([](Json& j) { j["hidden"] = 128; }), "MAPS_SHAPE", "kv.3.weight");
  expect(changed([](Json& j) { j["kv_width"] = 64; }), "MAPS_SHAPE", "kv.3.bias");
  expect(changed([](Json& j) { j["dtype"] = "int8"; }), "MAPS_LAYER_MISSING", "kv.3.codes");
  expect(changed([](Json& j) { j["folded"] = false; }), "MAPS_LAYER_MISSING", "proj.3");
  ASSERT_TRUE(base::WriteFileAtomically(ManifestPath(), "{\"format_version\": 1,").ok());
  expect(MapSet::Load(folder_).status(), "JSON_SYNTAX", "ridgefill.json");
}

TEST_F(MapSetTest, IgnoresFieldsOfLaterWriters) {
  Save(Manifest(true, "bf16"));
  EXPECT_TRUE(LoadChanged([](formats::Json& json) { json["row_weights"] = {{"power", 1}}; }).ok());
}

TEST_F(MapSetTest, ReplacingASetLeavesNoOldFiles) {
  Save(Manifest(true, "bf16"));
  const std::string old_name = OnlyTensorFile();
  std::ofstream(folder_ + "/README.md") << "mine";
  Save(Manifest(true, "int8"));
  EXPECT_NE(OnlyTensorFile(), old_name);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/" + old_name));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/README.md"));
  Save(Manifest(true, "int8"));  // the same again
  EXPECT_TRUE(MapSet::Load(folder_).ok());
}

TEST_F(MapSetTest, SavingNeedsEveryLateLayer) {
  const MapSetManifest m = Manifest(true, "bf16");
  std::vector<LayerMap> maps = Maps(m);
  maps.pop_back();
  EXPECT_FALSE(SaveMapSet(folder_, m, maps).ok());
}

TEST_F(MapSetTest, CompatibilityNamesTheDifference) {
  MapSetManifest m = Manifest(true, "bf16");
  std::string warning = "old";
  EXPECT_TRUE(CheckCompatible(m, m.model, 2, &warning).ok());
  EXPECT_THAT(warning, IsEmpty());
  EXPECT_TRUE(CheckCompatible(m, m.model, -1, &warning).ok());

  const auto check = [&](auto change, int split = -1) {
    base::ModelIdentity other = m.model;
    change(other);
    return ReasonOf(CheckCompatible(m, other, split, &warning));
  };
  const auto same = [](base::ModelIdentity&) {};
  EXPECT_EQ(check([](base::ModelIdentity& o) { o.arch = "qwen2"; }), "MAPS_OTHER_ARCH");
  EXPECT_EQ(check([](base::ModelIdentity& o) { o.dimensions = "6 layers"; }), "MAPS_OTHER_DIMENSIONS");
  EXPECT_EQ(check([](base::ModelIdentity& o) { o.tokenizer_digest = "other"; }), "MAPS_OTHER_TOKENIZER");
  EXPECT_EQ(check(same, 3), "MAPS_OTHER_SPLIT");

  base::ModelIdentity requantised = m.model;
  requantised.weights_digest = "other";
  requantised.name = "renamed";
  EXPECT_TRUE(CheckCompatible(m, requantised, 2, &warning).ok());
  EXPECT_THAT(warning, HasSubstr("other weights"));
}

// Folders as other RidgeFill projects publish them.
class PublishedSetTest : public MapSetTest {
 protected:
  struct Owned {
    formats::TensorInfo info;
    std::string bytes;
  };
  void Add(const std::string& name, formats::Encoding encoding, std::vector<int64_t> dims,
           const std::string& bytes) {
    tensors_.push_back({{name, encoding, std::move(dims), 0, bytes.size()}, bytes});
  }
  static std::string Bf16(const std::vector<float>& values) {
    const std::vector<uint16_t> bits = EncodeBf16(values);
    return {reinterpret_cast<const char*>(bits.data()), bits.size() * 2};
  }
  void Publish(formats::Json manifest) {
    std::filesystem::create_directories(folder_);
    std::vector<formats::TensorBytes> views;
    for (const Owned& tensor : tensors_) views.push_back({tensor.info, tensor.bytes});
    ASSERT_TRUE(formats::WriteSafetensors(folder_ + "/proj.safetensors", views).ok());
    manifest["files"] = {{"proj.safetensors", base::Sha256HexOfFile(folder_ + "/proj.safetensors").value()}};
    WriteManifest(manifest);
  }
  std::vector<Owned> tensors_;
};

TEST_F(PublishedSetTest, Bf16WithTheBiasInTheLastColumn) {
  for (int layer : {2, 3}) {  // the split layer has a map as well; it is not used
    const float l = static_cast<float>(layer);
    Add(absl::StrCat("layer.", layer), formats::Encoding::kBF16, {2, 3}, Bf16({1, 2, 10 * l, 3, 4, 20 * l}));
  }
  Publish({{"format", 1}, {"split", 2}, {"model", {{"arch_id", "llama"}}}});
  const auto set = MapSet::Load(folder_);
  ASSERT_TRUE(set.ok()) << set.status();
  const MapSetManifest& m = (*set)->manifest();
  EXPECT_FALSE(m.folded);
  EXPECT_EQ(m.layers, 4);
  EXPECT_EQ(m.hidden, 2);
  EXPECT_EQ(m.split, 2);
  EXPECT_EQ(m.outlier_threshold, 0);
  const LayerMap map = (*set)->ReadLayer(3).value();
  EXPECT_EQ(map.weight, (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(map.bias, (std::vector<float>{30, 60}));

  std::string warning;
  EXPECT_TRUE(
      CheckCompatible(m, {"m", "llama", "4 layers, 2 wide, 1/1 heads of 2, vocab 9", "t", "w"}, 2, &warning)
          .ok());
  EXPECT_THAT(warning, HasSubstr("published"));
  EXPECT_EQ(ReasonOf(CheckCompatible(m, {"m", "llama", "4 layers, 20 wide, ...", "t", "w"}, 2, &warning)),
            "MAPS_OTHER_DIMENSIONS");
  EXPECT_EQ(ReasonOf(CheckCompatible(m, {"m", "qwen2", "4 layers, 2 wide,", "t", "w"}, 2, &warning)),
            "MAPS_OTHER_ARCH");
}

TEST_F(PublishedSetTest, Int8CodesScalesAndBias) {
  const std::string codes("\x01\xff\x02\x7f", 4);
  for (int layer : {1, 2}) {
    const std::string prefix = absl::StrCat("proj.", layer);
    Add(prefix + ".codes", formats::Encoding::kI8, {2, 2}, codes);
    Add(prefix + ".scale", formats::Encoding::kBF16, {2, 1}, Bf16({0.5f, 2.0f}));
    Add(prefix + ".bias", formats::Encoding::kBF16, {2}, Bf16({1, 2}));
  }
  Publish({{"format", 1}, {"projector", {{"dtype", "i8"}}}, {"tail", {{"default", 2048}, {"min", 512}}}});
  const auto set = MapSet::Load(folder_);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ((*set)->manifest().split, 1) << "the lowest layer, when the manifest does not say";
  EXPECT_EQ((*set)->manifest().tail_minimum, 512);
  const LayerMap map = (*set)->ReadLayer(2).value();
  EXPECT_EQ(map.weight, (std::vector<float>{0.5f, -0.5f, 4, 254}));
  EXPECT_EQ(map.bias, (std::vector<float>{1, 2}));
}

TEST_F(PublishedSetTest, RefusesMapsOfAWiderStream) {
  for (int layer : {1, 2}) {
    Add(absl::StrCat("layer.", layer), formats::Encoding::kBF16, {2, 5}, Bf16(std::vector<float>(10)));
  }
  Publish({{"format", 1}});
  const absl::Status status = MapSet::Load(folder_).status();
  EXPECT_EQ(ReasonOf(status), "MAPS_SHAPE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer.2"));
}

TEST_F(MapSetTest, DeviceMapsApplyTheStoredMap) {
  const MapSetManifest m = Manifest(true, "bf16");
  Save(m);
  const auto set = MapSet::Load(folder_).value();
  const auto backend = kernels::MakeReferenceBackend();
  const auto maps = DeviceMaps::Load(*set, *backend);
  ASSERT_TRUE(maps.ok()) << maps.status();
  EXPECT_EQ((*maps)->manifest().digest, set->manifest().digest);
  EXPECT_GT((*maps)->bytes(), 0);

  const auto stream = backend->NewStream();
  const auto x = backend->Allocate(kernels::DType::kF32, {2, m.hidden}).value();
  const auto y = backend->Allocate(kernels::DType::kF32, {2, 2 * m.kv_width}).value();
  std::vector<float> in(2 * m.hidden), out(4 * m.kv_width);
  for (size_t i = 0; i < in.size(); ++i) in[i] = std::sin(static_cast<float>(i));
  ASSERT_TRUE(
      backend->CopyFromHost(*stream, {reinterpret_cast<const char*>(in.data()), in.size() * 4}, x.view())
          .ok());
  ASSERT_TRUE((*maps)->Apply(*stream, 4, 0, {x.view(), {}}, y.view()).ok());
  ASSERT_TRUE(
      backend->CopyToHost(*stream, y.view(), {reinterpret_cast<char*>(out.data()), out.size() * 4}).ok());
  ASSERT_TRUE(backend->Synchronize(*stream).ok());
  const LayerMap map = set->ReadLayer(4).value();
  for (int row : {0, 1}) {
    for (int o : {0, 1, 135}) {
      double want = map.bias[o];
      for (int i = 0; i < m.hidden; ++i)
        want += double{map.weight[o * m.hidden + i]} * in[row * m.hidden + i];
      EXPECT_NEAR(out[row * 2 * m.kv_width + o], want, 1e-5);
    }
  }
}

TEST_F(MapSetTest, DeviceMapsApplyTheAskedMapToBothInputs) {
  const MapSetManifest m = MixtureManifest("bf16");
  Save(m);
  const auto set = MapSet::Load(folder_).value();
  const auto backend = kernels::MakeReferenceBackend();
  const auto maps = DeviceMaps::Load(*set, *backend).value();
  const auto stream = backend->NewStream();
  const auto x = backend->Allocate(kernels::DType::kF32, {2, m.hidden}).value();
  const auto y = backend->Allocate(kernels::DType::kF32, {1, 2 * m.kv_width}).value();
  const auto scores = backend->Allocate(kernels::DType::kF32, {1, m.mixture}).value();
  std::vector<float> in(2 * m.hidden), out(2 * m.kv_width), score(m.mixture);
  for (size_t i = 0; i < in.size(); ++i) in[i] = std::sin(static_cast<float>(i));
  const auto bytes = [](auto& values) {
    return absl::Span<char>(reinterpret_cast<char*>(values.data()), values.size() * 4);
  };
  ASSERT_TRUE(backend->CopyFromHost(*stream, bytes(in), x.view()).ok());
  const LayerMap map = set->ReadLayer(3).value();
  const DeviceMaps::Inputs inputs = {x.view().Rows(0, 1), x.view().Rows(1, 1)};
  for (int component : {0, 2}) {
    ASSERT_TRUE(maps->Apply(*stream, 3, component, inputs, y.view()).ok());
    ASSERT_TRUE(backend->CopyToHost(*stream, y.view(), bytes(out)).ok());
    for (int o : {0, 135}) {
      const int64_t row = component * 136 + o;
      double want = map.bias[row];
      for (int i = 0; i < 2 * m.hidden; ++i) want += double{map.weight[row * 2 * m.hidden + i]} * in[i];
      EXPECT_NEAR(out[o], want, 1e-5);
    }
  }
  ASSERT_TRUE(maps->Score(*stream, inputs.hidden, scores.view()).ok());
  ASSERT_TRUE(backend->CopyToHost(*stream, scores.view(), bytes(score)).ok());
  const Gate gate = SomeGate(m);
  for (int map_index = 0; map_index < 3; ++map_index) {
    double want = gate.bias[map_index];
    for (int i = 0; i < m.hidden; ++i) want += double{gate.weight[map_index * m.hidden + i]} * in[i];
    EXPECT_NEAR(score[map_index], want, 0.02) << "weights are packed at bf16 or better";
  }
}

}  // namespace
}  // namespace ridgefill::ridge
