#include "engine/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/engine/formats/refusals.h"

namespace ridgefill::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kTiny[] = RIDGEFILL_SOURCE_DIR "/tests/data/formats/tiny.safetensors";

std::string WithHeader(absl::string_view header, absl::string_view data) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  return file + std::string(header) + std::string(data);
}

// A fresh folder per test.
class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              absl::StrCat("safetensors_test.", getpid(), ".",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  void Write(const std::string& name, absl::string_view bytes) {
    ASSERT_TRUE(base::WriteFileAtomically(Path(name), bytes).ok());
  }
  // A shard with one f32 tensor of one element.
  void WriteShard(const std::string& name, const std::string& tensor, float value) {
    const absl::string_view bytes(reinterpret_cast<const char*>(&value), 4);
    ASSERT_TRUE(WriteSafetensors(Path(name), {{{tensor, Encoding::kF32, {1}}, bytes}}).ok());
  }

  std::filesystem::path folder_;
};

TEST_F(SafetensorsTest, ReadsWhatTheReferenceWrote) {
  const auto file = SafetensorsFile::Open(kTiny);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->metadata(), ElementsAre(testing::Pair("format", "pt"), testing::Pair("note", "Grüße")));
  EXPECT_EQ(file->tensors().size(), 7u);
  const auto weight = file->Tensor("weight.bf16");
  ASSERT_TRUE(weight.ok()) << weight.status();
  EXPECT_EQ(weight->info.encoding, Encoding::kBF16);
  EXPECT_THAT(weight->info.dims, ElementsAre(2, 96));
  EXPECT_EQ(weight->bytes.size(), 384u);
  EXPECT_EQ(file->Tensor("sums.f64")->bytes.size(), 24u);
  EXPECT_EQ(file->Tensor("codes.i8")->bytes, absl::string_view("\x80\xff\0\1\x7f", 5));
  EXPECT_TRUE(file->Tensor("scalar")->info.dims.empty());
  EXPECT_THAT(file->Tensor("empty")->info.dims, ElementsAre(0, 4));
  ExpectRefused(file->Tensor("absent").status(), "MISSING_TENSOR", "absent");
}

TEST_F(SafetensorsTest, WritesWhatItReads) {
  const std::vector<double> sums = {1e-300, -0.0, 3.25};
  const std::vector<int8_t> codes = {-128, 0, 127};
  const std::vector<uint16_t> halves = {0x3f80, 0x7f80};
  const auto bytes = [](const auto& values) {
    return absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  };
  const std::vector<TensorBytes> tensors = {{{"codes", Encoding::kI8, {3}}, bytes(codes)},
                                            {{"sums", Encoding::kF64, {3, 1}}, bytes(sums)},
                                            {{"h", Encoding::kBF16, {1, 2}}, bytes(halves)},
                                            {{"none", Encoding::kF32, {0}}, ""},
                                            {{"none64", Encoding::kF64, {3, 0}}, ""}};
  const SafetensorsMetadata metadata = {{"split", "18"}, {"fit", "{\"rows\": 3}"}};
  ASSERT_TRUE(WriteSafetensors(Path("out.safetensors"), tensors, metadata).ok());

  const auto file = SafetensorsFile::Open(Path("out.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata(), metadata);
  for (const TensorBytes& tensor : tensors) {
    const auto read = file->Tensor(tensor.info.name);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->info.encoding, tensor.info.encoding);
    EXPECT_EQ(read->info.dims, tensor.info.dims);
    EXPECT_EQ(read->bytes, tensor.bytes);
  }
}

TEST_F(SafetensorsTest, TheWriterRefusesItsCallersMistakes) {
  const std::string path = Path("out.safetensors");
  const std::vector<TensorBytes> short_bytes = {{{"a", Encoding::kF32, {2}}, "1234"}};
  ExpectRefused(WriteSafetensors(path, short_bytes), "SAFETENSORS_SIZE", "\"a\" has 4 bytes");
  const std::vector<TensorBytes> twice = {{{"a", Encoding::kI8, {1}}, "1"}, {{"a", Encoding::kI8, {1}}, "2"}};
  ExpectRefused(WriteSafetensors(path, twice), "SAFETENSORS_DUPLICATE_TENSOR", "\"a\"");
  const std::vector<TensorBytes> quantized = {{{"a", Encoding::kQ8_0, {32}}, std::string(34, 'x')}};
  ExpectRefused(WriteSafetensors(path, quantized), "SAFETENSORS_DTYPE", "Q8_0");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  const auto bytes = base::ReadFile(kTiny);
  ASSERT_TRUE(bytes.ok());
  for (size_t length = 0; length < bytes->size(); ++length) {
    const std::string cut(bytes->data(), length);
    EXPECT_FALSE(SafetensorsFile::Parse(cut).ok()) << length;
  }
}

struct Refusal {
  const char* header;
  const char* reason;
  const char* names;
};

// Each over eight bytes of data.
constexpr Refusal kRefusals[] = {
    {"", "SAFETENSORS_HEADER", "start with {"},
    {" {}", "SAFETENSORS_HEADER", "start with {"},
    {"{\"a\":", "JSON_SYNTAX", "byte 5"},
    {"{}", "SAFETENSORS_HOLE", "8 bytes follow"},
    {R"({"a":7})", "SAFETENSORS_DTYPE", "\"a\""},
    {R"({"a":{"shape":[2],"data_offsets":[0,8]}})", "SAFETENSORS_DTYPE", "\"a\""},
    {R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", "SAFETENSORS_DTYPE",
     "\"a\" has dtype \"F31\""},
    {R"({"a":{"dtype":"Q8_0","shape":[2],"data_offsets":[0,8]}})", "SAFETENSORS_DTYPE", "\"Q8_0\""},
    {R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", "SAFETENSORS_SHAPE", "\"a\""},
    {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "SAFETENSORS_SHAPE", "shape/0"},
    {R"({"a":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}})", "SAFETENSORS_SHAPE", "shape/0"},
    {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "TENSOR_DIMENSIONS", "\"a\""},
    {R"({"a":{"dtype":"F32","shape":[1,1,1,1,2],"data_offsets":[0,8]}})", "TENSOR_DIMENSIONS",
     "5 dimensions"},
    {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8]}})",
     "TENSOR_SIZE_OVERFLOW", "\"a\""},
    {R"({"a":{"dtype":"F64","shape":[2305843009213693952,2],"data_offsets":[0,8]}})", "TENSOR_SIZE_OVERFLOW",
     "\"a\""},
    {R"({"a":{"dtype":"F32","shape":[2]}})", "SAFETENSORS_OFFSETS", "\"a\""},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "SAFETENSORS_OFFSETS", "\"a\""},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "SAFETENSORS_OFFSETS", "\"a\""},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", "SAFETENSORS_OFFSETS", "\"a\""},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})", "SAFETENSORS_OFFSETS",
     "\"a\""},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", "SAFETENSORS_SIZE", "\"a\" takes 8 bytes"},
    {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "SAFETENSORS_TRUNCATED",
     "\"a\" ends at byte 16"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[9223372036854775799,9223372036854775807]}})",
     "SAFETENSORS_TRUNCATED", "\"a\""},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
     "SAFETENSORS_OVERLAP", "\"b\""},
    {R"({"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
     "SAFETENSORS_HOLE", "\"b\" leaves 2 bytes"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "SAFETENSORS_HOLE", "4 bytes follow"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
     "JSON_DUPLICATE_KEY", "\"a\""},
    {R"({"__metadata__":[],"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "SAFETENSORS_HEADER",
     "__metadata__"},
    {R"({"__metadata__":{"k":1},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "SAFETENSORS_HEADER",
     "\"k\""},
    {R"({"a":[[[[[]]]]]})", "JSON_TOO_DEEP", "byte"},
};

TEST_F(SafetensorsTest, RefusesBadHeaders) {
  const std::string good =
      WithHeader(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   )", "12345678");
  ASSERT_TRUE(SafetensorsFile::Parse(good).ok());
  for (const Refusal& refusal : kRefusals) {
    SCOPED_TRACE(refusal.header);
    const std::string bytes = WithHeader(refusal.header, "12345678");
    ExpectRefused(SafetensorsFile::Parse(bytes).status(), refusal.reason, refusal.names);
  }
}

TEST_F(SafetensorsTest, RefusesHeaderLengthsBeyondTheFile) {
  ExpectRefused(SafetensorsFile::Parse("1234567").status(), "SAFETENSORS_TRUNCATED", "7 bytes");
  for (const uint64_t length : {uint64_t{3}, uint64_t{1} << 40, ~uint64_t{0}}) {
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
    bytes += "{}";
    ExpectRefused(SafetensorsFile::Parse(bytes).status(), "SAFETENSORS_HEADER_LENGTH", "at most 2");
  }
}

TEST_F(SafetensorsTest, OpensShardsByTheirIndex) {
  WriteShard("model-00001-of-00002.safetensors", "a", 1);
  WriteShard("model-00002-of-00002.safetensors", "b", 2);
  WriteShard("other.safetensors", "c", 3);
  Write("model.safetensors.index.json",
        R"({"metadata": {"total_size": 8}, "weight_map": {"a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors"}})");
  auto set = SafetensorsSet::OpenFolder(folder_.string());
  ASSERT_TRUE(set.ok()) << set.status();
  const SafetensorsSet moved = *std::move(set);
  EXPECT_THAT(moved.names(), ElementsAre("a", "b"));
  float value = 0;
  std::memcpy(&value, moved.Tensor("b")->bytes.data(), 4);
  EXPECT_EQ(value, 2);
  ExpectRefused(moved.Tensor("c").status(), "MISSING_TENSOR", "\"c\"");
}

TEST_F(SafetensorsTest, OpensFoldersWithoutAnIndex) {
  ExpectRefused(SafetensorsSet::OpenFolder(folder_.string()).status(), "FILE_ERROR", "*.safetensors");
  WriteShard("one.safetensors", "a", 1);
  WriteShard("two.safetensors", "b", 2);
  EXPECT_THAT(SafetensorsSet::OpenFolder(folder_.string())->names(), ElementsAre("a", "b"));
  WriteShard("zero.safetensors", "b", 2);
  ExpectRefused(SafetensorsSet::OpenFolder(folder_.string()).status(), "SAFETENSORS_DUPLICATE_TENSOR",
                "\"b\"");
  WriteShard("model.safetensors", "m", 2);
  EXPECT_THAT(SafetensorsSet::OpenFolder(folder_.string())->names(), ElementsAre("m"));
}

TEST_F(SafetensorsTest, RefusesBadIndexes) {
  WriteShard("shard.safetensors", "a", 1);
  struct Case {
    const char* index;
    const char* reason;
    const char* names;
  };
  const Case cases[] = {
      {"{", "JSON_SYNTAX", "index.json"},
      {"{}", "JSON_MISSING_KEY", "weight_map"},
      {R"({"weight_map": []})", "JSON_TYPE", "weight_map"},
      {R"({"weight_map": {"a": 7}})", "SAFETENSORS_SHARD_NAME", "\"a\""},
      {R"({"weight_map": {"a": "../shard.safetensors"}})", "SAFETENSORS_SHARD_NAME",
       "\"../shard.safetensors\""},
      {R"({"weight_map": {"a": "/etc/x.safetensors"}})", "SAFETENSORS_SHARD_NAME", "\"a\""},
      {R"({"weight_map": {"a": "..\\x.safetensors"}})", "SAFETENSORS_SHARD_NAME", "\"a\""},
      {R"({"weight_map": {"a": "x\u0000.safetensors"}})", "SAFETENSORS_SHARD_NAME", "\"a\""},
      {R"({"weight_map": {"a": ".safetensors"}})", "SAFETENSORS_SHARD_NAME", "\"a\""},
      {R"({"weight_map": {"a": "passwd"}})", "SAFETENSORS_SHARD_NAME", "\"passwd\""},
      {R"({"weight_map": {"a": "gone.safetensors"}})", "FILE_ERROR", "gone.safetensors"},
      {R"({"weight_map": {"b": "shard.safetensors"}})", "MISSING_TENSOR", "\"b\""},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.index);
    Write("model.safetensors.index.json", c.index);
    ExpectRefused(SafetensorsSet::OpenFolder(folder_.string()).status(), c.reason, c.names);
  }
}

}  // namespace
}  // namespace ridgefill::formats
