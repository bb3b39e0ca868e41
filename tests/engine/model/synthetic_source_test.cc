// A GGUF file and a Hugging Face folder give the same model; what this build would compute wrongly is refused
// by name.
#include "engine/model/weight_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "tests/engine/formats/refusals.h"
#include "tests/engine/model/synthetic_model.h"

namespace ridgefill::model {
namespace {

using formats::ExpectRefused;
using formats::GgufBuilder;
using formats::Json;

class SyntheticSourceTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(name.begin(), name.end(), '/', '_');
    root_ =
        std::filesystem::path(testing::TempDir()) / absl::StrCat("synthetic_source_", getpid(), ".", name);
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string Folder() const { return (root_ / "folder").string(); }
  std::string Gguf() const { return (root_ / "model.gguf").string(); }

  absl::Status OpenFolder(const SyntheticModel& model) {
    model.WriteFolder(Folder());
    return WeightSource::Open(Folder()).status();
  }
  absl::Status OpenGguf(const GgufBuilder& builder) {
    EXPECT_TRUE(base::WriteFileAtomically(Gguf(), builder.Build()).ok());
    return WeightSource::Open(Gguf()).status();
  }

  std::filesystem::path root_;
};

std::vector<float> ReadAll(const WeightTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.dims[0] * tensor.row_elements()));
  EXPECT_TRUE(tensor.ReadRows(0, tensor.dims[0], values.data()).ok());
  return values;
}

TEST_P(SyntheticSourceTest, BothFormsGiveTheSameTensors) {
  const SyntheticModel model(GetParam());
  model.WriteFolder(Folder());
  model.WriteGguf(Gguf());
  const auto folder = WeightSource::Open(Folder());
  const auto gguf = WeightSource::Open(Gguf());
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ((*folder)->gguf(), nullptr);
  EXPECT_NE((*gguf)->gguf(), nullptr);
  for (const auto& [name, weight] : model.weights) {
    for (const auto* source : {&*folder, &*gguf}) {
      const auto tensor = (*source)->Find(name);
      ASSERT_TRUE(tensor.ok()) << tensor.status();
      EXPECT_EQ(tensor->dims, weight.dims) << name;
      EXPECT_EQ(ReadAll(*tensor), weight.values) << name << " of " << (*source)->path();
    }
  }
  ExpectRefused((*gguf)->Find("lm_head.weight").status(), "MISSING_TENSOR", "lm_head.weight");
}

TEST_P(SyntheticSourceTest, BothFormsGiveTheSameConfig) {
  const SyntheticModel model(GetParam());
  model.WriteFolder(Folder());
  model.WriteGguf(Gguf());
  for (const std::string& path : {Folder(), Gguf()}) {
    const auto source = WeightSource::Open(path);
    ASSERT_TRUE(source.ok()) << source.status();
    const ModelConfig& c = (*source)->config();
    EXPECT_EQ(c.arch, GetParam());
    EXPECT_EQ(
        std::vector<int>({c.layers, c.hidden, c.heads_q, c.heads_kv, c.head_dim, c.ffn, c.vocab, c.context}),
        std::vector<int>({2, 8, 2, 1, 4, 12, 10, 64}));
    EXPECT_EQ(c.rms_eps, 1e-5f);
    EXPECT_EQ(c.rope.theta, 10000.0);
    EXPECT_TRUE(c.tied_head);
    EXPECT_EQ(c.qkv_bias, GetParam() == "qwen2");
  }
}

TEST_P(SyntheticSourceTest, RowsCanBeReadInPieces) {
  const SyntheticModel model(GetParam());
  model.WriteGguf(Gguf());
  const auto source = WeightSource::Open(Gguf());
  ASSERT_TRUE(source.ok()) << source.status();
  const auto tensor = (*source)->Find("model.layers.1.self_attn.q_proj.weight");
  ASSERT_TRUE(tensor.ok());
  const std::vector<float>& whole = model.weights.at(tensor->name).values;
  std::vector<float> rows(3 * 8);
  ASSERT_TRUE(tensor->ReadRows(3, 3, rows.data()).ok());  // across a head's border
  EXPECT_EQ(rows, std::vector<float>(whole.begin() + 3 * 8, whole.begin() + 6 * 8));
}

TEST_P(SyntheticSourceTest, AnUntiedHeadIsATensor) {
  SyntheticModel model(GetParam());
  model.Add("lm_head.weight", "output.weight", {SyntheticModel::kVocab, SyntheticModel::kHidden});
  model.config["tie_word_embeddings"] = false;
  model.WriteFolder(Folder());
  model.WriteGguf(Gguf());
  for (const std::string& path : {Folder(), Gguf()}) {
    const auto source = WeightSource::Open(path);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_FALSE((*source)->config().tied_head);
    EXPECT_EQ(ReadAll(*(*source)->Find("lm_head.weight")), model.weights.at("lm_head.weight").values);
  }
}

TEST_P(SyntheticSourceTest, TheDigestFollowsTheWeights) {
  SyntheticModel model(GetParam());
  const auto digest = [&] {
    model.WriteFolder(Folder());
    return (*WeightSource::Open(Folder()))->weights_digest();
  };
  const std::string first = digest();
  EXPECT_EQ(digest(), first);
  model.weights.at("model.norm.weight").values[3] += 1;
  EXPECT_NE(digest(), first);
}

INSTANTIATE_TEST_SUITE_P(Archs, SyntheticSourceTest, testing::Values("llama", "qwen2"));

using Refusals = SyntheticSourceTest;

struct FolderRefusal {
  const char* key;  // a JSON pointer into config.json
  Json value;       // null: the key is removed
  const char* reason;
  const char* names;
};

std::vector<FolderRefusal> FolderRefusals() {
  return {
      {"/model_type", "mamba", "UNSUPPORTED_ARCH", "\"mamba\""},
      {"/model_type", nullptr, "JSON_MISSING_KEY", "model_type"},
      {"/hidden_size", nullptr, "JSON_MISSING_KEY", "hidden_size"},
      {"/hidden_size", "8", "JSON_TYPE", "hidden_size"},
      {"/hidden_size", 0, "MODEL_CONFIG", "hidden_size"},
      {"/hidden_size", int64_t{1} << 40, "MODEL_CONFIG", "hidden_size"},
      {"/hidden_size", 9, "MODEL_CONFIG", "hidden_size"},
      {"/num_hidden_layers", 3, "MISSING_TENSOR", "model.layers.2.input_layernorm.weight"},
      {"/num_hidden_layers", 1, "UNEXPECTED_TENSOR", "model.layers.1."},
      {"/num_key_value_heads", 0, "MODEL_CONFIG", "num_key_value_heads"},
      {"/vocab_size", 11, "TENSOR_SHAPE", "model.embed_tokens.weight"},
      {"/tie_word_embeddings", false, "MISSING_TENSOR", "lm_head.weight"},
      {"/hidden_act", "gelu", "UNSUPPORTED_CONFIG", "hidden_act"},
      {"/rope_theta", -1, "MODEL_CONFIG", "rope_theta"},
      {"/rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}, "UNSUPPORTED_ROPE_SCALING", "\"yarn\""},
      {"/rope_scaling", {{"type", "dynamic"}, {"factor", 4}}, "UNSUPPORTED_ROPE_SCALING", "\"dynamic\""},
      {"/rope_scaling", {{"type", "linear"}}, "JSON_MISSING_KEY", "rope_scaling: key \"factor\""},
      {"/rope_scaling", {{"type", "linear"}, {"factor", 0}}, "MODEL_CONFIG", "factor"},
      {"/attention_bias", true, "UNSUPPORTED_CONFIG", "attention_bias"},
      {"/sliding_window", 4096, "UNSUPPORTED_CONFIG", "sliding_window"},
      {"/num_local_experts", 8, "UNSUPPORTED_CONFIG", "num_local_experts"},
      {"/quantization_config", {{"bits", 4}}, "UNSUPPORTED_CONFIG", "quantization_config"},
  };
}

TEST_F(Refusals, OfFolders) {
  for (const FolderRefusal& refusal : FolderRefusals()) {
    SCOPED_TRACE(std::string(refusal.key) + " = " + refusal.value.dump());
    SyntheticModel model("llama");
    const Json::json_pointer key(refusal.key);
    model.config[key] = refusal.value;
    const absl::Status status = OpenFolder(model);
    ExpectRefused(status, refusal.reason, refusal.names);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(Folder()));
  }
}

struct GgufRefusal {
  const char* label;
  const char* reason;
  const char* names;
  std::function<GgufBuilder()> make;
};

GgufBuilder Whole(const SyntheticModel& model, const std::function<void(GgufBuilder&)>& edit) {
  GgufBuilder builder = model.Metadata();
  edit(builder);
  model.AddTensors(builder);
  return builder;
}

GgufBuilder Edited(const std::function<void(GgufBuilder&)>& edit) {
  return Whole(SyntheticModel("llama"), edit);
}

std::vector<GgufRefusal> GgufRefusals() {
  return {
      {"NoArch", "GGUF_MISSING_KEY", "general.architecture", [] { return GgufBuilder().U32("x", 1); }},
      {"Arch", "UNSUPPORTED_ARCH", "\"mamba\"",
       [] { return GgufBuilder().String("general.architecture", "mamba"); }},
      {"ArchType", "GGUF_KEY_TYPE", "general.architecture",
       [] { return GgufBuilder().U32("general.architecture", 1); }},
      {"NoSizes", "GGUF_MISSING_KEY", "llama.block_count",
       [] { return GgufBuilder().String("general.architecture", "llama"); }},
      {"Experts", "UNSUPPORTED_CONFIG", "llama.expert_count",
       [] { return Edited([](GgufBuilder& b) { b.U32("llama.expert_count", 8); }); }},
      {"Yarn", "UNSUPPORTED_ROPE_SCALING", "\"yarn\"",
       [] { return Edited([](GgufBuilder& b) { b.String("llama.rope.scaling.type", "yarn"); }); }},
      {"PartialRope", "UNSUPPORTED_CONFIG", "llama.rope.dimension_count",
       [] { return Edited([](GgufBuilder& b) { b.U32("llama.rope.dimension_count", 2); }); }},
      {"HeadDim", "TENSOR_SHAPE", "blk.0.attn_q.weight",
       [] {
         return Edited([](GgufBuilder& b) {
           b.U32("llama.attention.key_length", 6).U32("llama.attention.value_length", 6);
         });
       }},
      {"Vocabulary", "TENSOR_SHAPE", "token_embd.weight",
       [] { return Edited([](GgufBuilder& b) { b.U32("llama.vocab_size", 11); }); }},
      {"Unexpected", "UNEXPECTED_TENSOR", "blk.0.attn_q_norm.weight",
       [] {
         return Edited([](GgufBuilder& b) { b.AddF32("blk.0.attn_q_norm.weight", {4}, {1, 1, 1, 1}); });
       }},
      {"Divisors", "MODEL_CONFIG", "rope_freqs.weight",
       [] { return Edited([](GgufBuilder& b) {
              b.AddF32("rope_freqs.weight", {2}, {1, 0});
            }); }},
      {"IntegerWeight", "TENSOR_ENCODING", "blk.1.ffn_norm.weight",
       [] {
         SyntheticModel model("llama");
         model.weights.erase("model.layers.1.post_attention_layernorm.weight");
         return Whole(model, [](GgufBuilder& b) {
           b.Add({"blk.1.ffn_norm.weight", {8}, 24, std::string(8, 'x')});
         });
       }},
      {"Missing", "MISSING_TENSOR", "blk.1.ffn_up.weight",
       [] {
         SyntheticModel model("llama");
         model.weights.erase("model.layers.1.mlp.up_proj.weight");
         return Whole(model, [](GgufBuilder&) {});
       }},
  };
}

TEST_F(Refusals, OfGgufFiles) {
  for (const GgufRefusal& refusal : GgufRefusals()) {
    SCOPED_TRACE(refusal.label);
    const absl::Status status = OpenGguf(refusal.make());
    ExpectRefused(status, refusal.reason, refusal.names);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(Gguf()));
  }
}

TEST_F(Refusals, OfPaths) {
  ExpectRefused(WeightSource::Open("/nonexistent").status(), "MODEL_NOT_FOUND", "/nonexistent");
  ExpectRefused(WeightSource::Open("/nonexistent.gguf").status(), "FILE_ERROR", "/nonexistent.gguf");
  ExpectRefused(WeightSource::Open(root_.string()).status(), "FILE_ERROR", "config.json");
  const std::string text = (root_ / "notes.txt").string();
  ASSERT_TRUE(base::WriteFileAtomically(text, "x").ok());
  ExpectRefused(WeightSource::Open(text).status(), "MODEL_KIND", "notes.txt");
}

TEST_F(Refusals, NotOfLinearScalingAndDivisors) {
  const absl::Status linear = OpenGguf(Edited([](GgufBuilder& b) {
    b.String("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4);
  }));
  EXPECT_TRUE(linear.ok()) << linear;
  EXPECT_EQ((*WeightSource::Open(Gguf()))->config().rope.factor, 4.0);
  const absl::Status divisors = OpenGguf(Edited([](GgufBuilder& b) {
    b.AddF32("rope_freqs.weight", {2}, {1, 8});
  }));
  EXPECT_TRUE(divisors.ok()) << divisors;
  EXPECT_THAT((*WeightSource::Open(Gguf()))->config().rope.frequency_divisors, testing::ElementsAre(1, 8));
}

}  // namespace
}  // namespace ridgefill::model
