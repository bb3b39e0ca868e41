// Both containers give the same tensors; what does not fit the architecture is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/model/arch_spec.h"
#include "engine/model/weight_source.h"
#include "tests/engine/formats/refusals.h"

namespace ridgefill::model {
namespace {

using formats::ExpectRefused;

std::string Tiny(absl::string_view name) {
  return absl::StrCat(RIDGEFILL_SOURCE_DIR, "/tests/data/golden/tiny/", name);
}

std::unique_ptr<WeightSource> Open(const std::string& path) {
  auto source = WeightSource::Open(path);
  EXPECT_TRUE(source.ok()) << source.status();
  return std::move(*source);
}

std::vector<float> ReadAll(const WeightTensor& tensor) {
  std::vector<float> values(tensor.dims[0] * tensor.row_elements());
  EXPECT_TRUE(tensor.ReadRows(0, tensor.dims[0], values.data()).ok());
  return values;
}

class Containers : public testing::TestWithParam<const char*> {};

TEST_P(Containers, HoldTheSameTensors) {
  const auto hf = Open(Tiny(GetParam())), gguf = Open(Tiny(absl::StrCat(GetParam(), ".gguf")));
  EXPECT_EQ(hf->gguf(), nullptr);
  EXPECT_NE(gguf->gguf(), nullptr);
  const ModelConfig &a = hf->config(), &b = gguf->config();
  EXPECT_EQ(MakeIdentity("", a, "", "").dimensions, MakeIdentity("", b, "", "").dimensions);
  EXPECT_EQ(std::tie(a.arch, a.ffn, a.context, a.rms_eps, a.tied_head, a.qkv_bias, a.rope.theta),
            std::tie(b.arch, b.ffn, b.context, b.rms_eps, b.tied_head, b.qkv_bias, b.rope.theta));
  const kernels::RopeSpec rope_a = MakeRopeSpec(a), rope_b = MakeRopeSpec(b);
  for (size_t i = 0; i < rope_a.inverse_frequencies.size(); ++i) {
    EXPECT_NEAR(rope_a.inverse_frequencies[i], rope_b.inverse_frequencies[i],
                1e-7 * rope_a.inverse_frequencies[i]);
  }
  int compared = 0;
  for (const TensorSpec& spec : (*FindArch(a.arch))->tensors(a)) {
    const auto from_hf = hf->Find(spec.hf_name), from_gguf = gguf->Find(spec.hf_name);
    ASSERT_TRUE(from_hf.ok()) << from_hf.status();
    ASSERT_TRUE(from_gguf.ok()) << from_gguf.status();
    EXPECT_EQ(from_hf->dims, from_gguf->dims);
    EXPECT_TRUE(ReadAll(*from_hf) == ReadAll(*from_gguf)) << spec.hf_name;
    ++compared;
  }
  EXPECT_GT(compared, 4 * 9);
}

INSTANTIATE_TEST_SUITE_P(Tiny, Containers,
                         testing::Values("llama", "llama-untied", "llama-llama3", "llama-linear", "qwen2",
                                         "qwen2-untied"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(WeightSource, ReadsAnyRangeOfRows) {
  const auto gguf = Open(Tiny("llama.gguf"));
  const auto tensor = gguf->Find("model.layers.1.self_attn.q_proj.weight");
  ASSERT_TRUE(tensor.ok());
  const std::vector<float> all = ReadAll(*tensor);
  std::vector<float> some(5 * tensor->row_elements());
  ASSERT_TRUE(tensor->ReadRows(13, 5, some.data()).ok());
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + 13 * tensor->row_elements()));
}

TEST(WeightSource, DigestTellsWeightsAndEncodingsApart) {
  const auto gguf = Open(Tiny("llama.gguf"));
  EXPECT_EQ(gguf->weights_digest(), Open(Tiny("llama.gguf"))->weights_digest());
  EXPECT_NE(gguf->weights_digest(), Open(Tiny("llama"))->weights_digest());  // Q8_0 became F32
  EXPECT_NE(Open(Tiny("qwen2"))->weights_digest(), Open(Tiny("qwen2-untied"))->weights_digest());
}

TEST(WeightSource, NamesAPathThatIsNoModel) {
  ExpectRefused(WeightSource::Open("/nowhere/model").status(), "MODEL_NOT_FOUND", "/nowhere/model");
  ExpectRefused(WeightSource::Open(Tiny("llama/config.json")).status(), "MODEL_KIND", "config.json");
}

// A copy of a checked-in folder to break.
class BrokenFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(testing::TempDir(), "/weight_source_test.", getpid(), ".",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(Tiny("llama"), folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void SetConfig(absl::string_view key, const nlohmann::json& value) {
    auto json = formats::ParseJson(base::ReadFile(folder_ + "/config.json").value()).value();
    json[std::string(key)] = value;
    std::ofstream(folder_ + "/config.json") << json.dump();
  }
  absl::Status Status() const { return WeightSource::Open(folder_).status(); }

  std::string folder_;
};

TEST_F(BrokenFolder, OpensAsItIs) { EXPECT_TRUE(Status().ok()) << Status(); }

TEST_F(BrokenFolder, MissingTensor) {
  SetConfig("num_hidden_layers", 5);
  ExpectRefused(Status(), "MISSING_TENSOR", "model.layers.4.input_layernorm.weight");
}

TEST_F(BrokenFolder, TensorThatWouldBeLeftOut) {
  SetConfig("num_hidden_layers", 3);
  ExpectRefused(Status(), "UNEXPECTED_TENSOR", "model.layers.3.");
}

TEST_F(BrokenFolder, TensorOfAnotherShape) {
  SetConfig("intermediate_size", 128);
  ExpectRefused(Status(), "TENSOR_SHAPE", "[128, 64]");
}

TEST_F(BrokenFolder, UnknownArchitecture) {
  SetConfig("model_type", "mamba");
  ExpectRefused(Status(), "UNSUPPORTED_ARCH", "this build has llama, qwen2");
}

TEST_F(BrokenFolder, NoConfig) {
  std::filesystem::remove(folder_ + "/config.json");
  EXPECT_EQ(Status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Status().message()), testing::HasSubstr("config.json"));
}

TEST_F(BrokenFolder, NoWeights) {
  std::filesystem::remove(folder_ + "/model.safetensors");
  EXPECT_FALSE(Status().ok());
}

}  // namespace
}  // namespace ridgefill::model
