#include "engine/formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "engine/formats/json.h"
#include "tests/engine/formats/gguf_builder.h"
#include "tests/engine/formats/refusals.h"

namespace ridgefill::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kTiny[] = RIDGEFILL_SOURCE_DIR "/tests/data/formats/tiny.gguf";

TEST(Gguf, ReadsEveryMetadataTypeOfTheReferenceWriter) {
  const auto file = GgufFile::Open(kTiny);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*file->GetString("general.architecture"), "test");
  EXPECT_EQ(*file->GetInt("scalar.u8"), 200);
  EXPECT_EQ(*file->GetInt("scalar.i8"), -100);
  EXPECT_EQ(*file->GetInt("scalar.u16"), 60000);
  EXPECT_EQ(*file->GetInt("scalar.i16"), -30000);
  EXPECT_EQ(*file->GetInt("scalar.u32"), 4000000000);
  EXPECT_EQ(*file->GetInt("scalar.i32"), -2000000000);
  EXPECT_EQ(*file->GetInt("scalar.i64"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(*file->GetDouble("scalar.f32"), 0.5);
  EXPECT_EQ(*file->GetDouble("scalar.f64"), 0.1);
  EXPECT_TRUE(*file->GetBool("scalar.bool"));
  EXPECT_EQ(*file->GetString("scalar.string"), "Grüße");
  EXPECT_THAT(*file->GetStrings("array.string"), ElementsAre("", "a", "Ġthe"));
  EXPECT_THAT(*file->GetInts("array.i32"), ElementsAre(1, -2, 3));
  EXPECT_THAT(*file->GetDoubles("array.f32"), ElementsAre(0.5, -1.5));
  EXPECT_EQ(file->keys().front(), "general.architecture");
  EXPECT_EQ(file->keys().size(), 16u);
}

TEST(Gguf, GettersNameTheKeyAndTheTypeWanted) {
  const auto file = GgufFile::Open(kTiny);
  ASSERT_TRUE(file.ok()) << file.status();
  ExpectRefused(file->GetInt("scalar.u64").status(), "GGUF_KEY_RANGE", "scalar.u64");
  ExpectRefused(file->GetInt("scalar.f32").status(), "GGUF_KEY_TYPE",
                "\"scalar.f32\" is float32, must be an integer");
  ExpectRefused(file->GetInt("array.i32").status(), "GGUF_KEY_TYPE", "\"array.i32\" is an array of int32");
  ExpectRefused(file->GetInts("scalar.u8").status(), "GGUF_KEY_TYPE", "must be an array");
  ExpectRefused(file->GetInts("array.string").status(), "GGUF_KEY_TYPE", "array.string");
  ExpectRefused(file->GetStrings("array.i32").status(), "GGUF_KEY_TYPE", "must be an array of strings");
  ExpectRefused(file->GetDoubles("array.i32").status(), "GGUF_KEY_TYPE", "array.i32");
  ExpectRefused(file->GetString("scalar.bool").status(), "GGUF_KEY_TYPE", "scalar.bool");
  ExpectRefused(file->GetBool("scalar.u8").status(), "GGUF_KEY_TYPE", "scalar.u8");
  ExpectRefused(file->GetInt("absent").status(), "GGUF_MISSING_KEY", "absent");
  ExpectRefused(file->Tensor("absent").status(), "MISSING_TENSOR", "absent");
  EXPECT_EQ(*file->GetIntOr("absent", 7), 7);
  EXPECT_EQ(*file->GetDoubleOr("absent", 0.25), 0.25);
  EXPECT_EQ(*file->GetStringOr("absent", "x"), "x");
  EXPECT_TRUE(*file->GetBoolOr("absent", true));
  ExpectRefused(file->GetIntOr("scalar.f32", 7).status(), "GGUF_KEY_TYPE", "scalar.f32");
}

TEST(Gguf, TensorsAreRowMajorAndDequantizeAsTheReferenceDoes) {
  const auto file = GgufFile::Open(kTiny);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto text = base::ReadFile(RIDGEFILL_SOURCE_DIR "/tests/data/formats/vectors.json");
  ASSERT_TRUE(text.ok());
  const auto vectors = ParseJson(*text);
  ASSERT_TRUE(vectors.ok()) << vectors.status();
  for (const char* name : {"f32", "f16", "bf16", "q4_0", "q4_1", "q8_0", "q4_k", "q6_k"}) {
    const auto tensor = file->Tensor(std::string("weight.") + name);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    const std::string type(EncodingName(tensor->info.encoding));
    EXPECT_EQ(tensor->info.dims, *GetInts(*vectors, type + "/shape")) << name;
    EXPECT_EQ(tensor->bytes.size(), GetString(*vectors, type + "/bytes")->size() / 2) << name;
  }
  const auto cube = file->Tensor("three.dims");
  ASSERT_TRUE(cube.ok());
  EXPECT_THAT(cube->info.dims, ElementsAre(2, 3, 4));
  std::vector<float> row(4);
  ASSERT_TRUE(Dequantize(Encoding::kF32, cube->bytes, 8, absl::MakeSpan(row)).ok());
  EXPECT_THAT(row, ElementsAre(8, 9, 10, 11));
}

TEST(Gguf, ViewsOutliveAMoveOfTheFile) {
  auto file = GgufFile::Open(kTiny);
  ASSERT_TRUE(file.ok());
  const absl::string_view text = *file->GetString("scalar.string");
  const GgufFile moved = *std::move(file);
  EXPECT_EQ(text, "Grüße");
  EXPECT_TRUE(moved.HasTensor("three.dims"));
}

GgufBuilder Valid() {
  GgufBuilder builder;
  builder.String("name", "x").AddF32("first", {4}, {1, 2, 3, 4}).AddF32("second", {2, 2}, {5, 6, 7, 8});
  return builder;
}

TEST(Gguf, TheBuilderWritesValidFiles) {
  const std::string bytes = Valid().Build();
  const auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), 2u);
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::string bytes = Valid().Build();
  for (size_t length = 0; length < bytes.size(); ++length) {
    // A copy of exactly this length lets AddressSanitizer see a read past the end.
    const std::string cut(bytes.data(), length);
    EXPECT_FALSE(GgufFile::Parse(cut).ok()) << length;
  }
}

TEST(Gguf, AcceptsOtherAlignments) {
  const std::string bytes =
      GgufBuilder().Alignment(64).AddF32("first", {1}, {1}).AddF32("second", {1}, {2}).Build();
  const auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors()[1].offset - file->tensors()[0].offset, 64u);
}

struct Refusal {
  std::string label;
  std::string reason;
  std::string names;
  std::function<std::string()> make;
};

std::string Edit(const std::function<void(GgufBuilder&)>& edit) {
  GgufBuilder builder = Valid();
  edit(builder);
  return builder.Build();
}

// One tensor "bad" that is wrong in its header; the data section is real.
std::string BadTensor(std::vector<uint64_t> dims, uint32_t type = 0, int64_t offset = -1) {
  return Edit([&](GgufBuilder& b) { b.Add({"bad", std::move(dims), type, std::string(64, 'x'), offset}); });
}

std::vector<Refusal> PreambleRefusals() {
  return {
      {"Empty", "GGUF_MAGIC", "GGUF", [] { return std::string(); }},
      {"Magic", "GGUF_MAGIC", "GGUF", [] { return Edit([](GgufBuilder& b) { b.magic = "GGML"; }); }},
      {"VersionTwo", "GGUF_VERSION", "version 2", [] { return Edit([](GgufBuilder& b) { b.version = 2; }); }},
      {"VersionFour", "GGUF_VERSION", "version 4",
       [] { return Edit([](GgufBuilder& b) { b.version = 4; }); }},
      {"BigEndian", "GGUF_ENDIAN", "big endian",
       [] { return Edit([](GgufBuilder& b) { b.version = 3u << 24; }); }},
      {"Truncated", "GGUF_TRUNCATED", "metadata count", [] { return Valid().Build().substr(0, 20); }},
      {"TensorCount", "GGUF_COUNT", "tensor count",
       [] { return Edit([](GgufBuilder& b) { b.tensor_count = int64_t{1} << 60; }); }},
      {"MetadataCount", "GGUF_COUNT", "metadata count",
       [] { return Edit([](GgufBuilder& b) { b.value_count = int64_t{1} << 60; }); }},
      {"TensorReadAsValue", "GGUF_NAME_LENGTH", "key \"\" has 0 bytes",
       [] { return Edit([](GgufBuilder& b) { b.value_count = 3; }); }},
  };
}

std::vector<Refusal> ValueRefusals() {
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  return {
      {"KeyLength", "GGUF_STRING_LENGTH", "key claims 99999",
       [] {
         std::string bytes = Valid().Build();
         return bytes.replace(24, 8, RawBytes<uint64_t>(99999));
       }},
      {"EmptyKey", "GGUF_NAME_LENGTH", "key", [] { return Edit([](GgufBuilder& b) { b.U32("", 1); }); }},
      {"LongKey", "GGUF_NAME_LENGTH", "65536 bytes",
       [] { return Edit([](GgufBuilder& b) { b.U32(std::string(65536, 'k'), 1); }); }},
      {"StringLength", "GGUF_STRING_LENGTH", "bad",
       [] { return Edit([](GgufBuilder& b) { b.Raw("bad", 8, RawBytes<uint64_t>(kHuge)); }); }},
      {"UnknownType", "GGUF_VALUE_TYPE", "\"bad\" has the unknown type 13",
       [] { return Edit([](GgufBuilder& b) { b.Raw("bad", 13, "xxxxxxxx"); }); }},
      {"UnknownElementType", "GGUF_VALUE_TYPE", "\"bad\" has the unknown type 4294967295",
       [] { return Edit([](GgufBuilder& b) { b.Array("bad", 0xffffffff, 1, "x"); }); }},
      {"NestedArray", "GGUF_NESTED_ARRAY", "bad",
       [] { return Edit([](GgufBuilder& b) { b.Array("bad", 9, 1, ""); }); }},
      {"ArrayCount", "GGUF_COUNT", "bad",
       [] { return Edit([](GgufBuilder& b) { b.Array("bad", 4, uint64_t{1} << 62, ""); }); }},
      {"ArrayCountWraps", "GGUF_COUNT", "bad",
       [] { return Edit([](GgufBuilder& b) { b.Array("bad", 12, kHuge, ""); }); }},
      {"StringArrayCount", "GGUF_COUNT", "bad",
       [] { return Edit([](GgufBuilder& b) { b.Array("bad", 8, kHuge, ""); }); }},
      {"StringInArray", "GGUF_STRING_LENGTH", "bad",
       [] { return Edit([](GgufBuilder& b) { b.Array("bad", 8, 1, RawBytes<uint64_t>(1 << 30)); }); }},
      {"Bool", "GGUF_BOOL", "bad", [] { return Edit([](GgufBuilder& b) { b.Raw("bad", 7, "\2"); }); }},
      {"BoolInArray", "GGUF_BOOL", "bad",
       [] { return Edit([](GgufBuilder& b) { b.Array("bad", 7, 2, absl::string_view("\1\xff", 2)); }); }},
      {"DuplicateKey", "GGUF_DUPLICATE_KEY", "name",
       [] { return Edit([](GgufBuilder& b) { b.U32("name", 1); }); }},
      {"AlignmentZero", "GGUF_ALIGNMENT", "general.alignment",
       [] { return Edit([](GgufBuilder& b) { b.U32("general.alignment", 0); }); }},
      {"AlignmentOdd", "GGUF_ALIGNMENT", "is 48",
       [] { return Edit([](GgufBuilder& b) { b.Alignment(48); }); }},
      {"AlignmentAbsurd", "GGUF_ALIGNMENT", "is 2147483648",
       [] { return Edit([](GgufBuilder& b) { b.U32("general.alignment", 1u << 31); }); }},
      {"AlignmentType", "GGUF_KEY_TYPE", "general.alignment",
       [] { return Edit([](GgufBuilder& b) { b.String("general.alignment", "32"); }); }},
  };
}

std::vector<Refusal> TensorRefusals() {
  return {
      {"NoDimensions", "TENSOR_DIMENSIONS", "\"bad\" has 0 dimensions", [] { return BadTensor({}); }},
      {"FiveDimensions", "TENSOR_DIMENSIONS", "\"bad\" has 5 dimensions",
       [] {
         return BadTensor({1, 1, 1, 1, 1});
       }},
      {"ZeroDimension", "TENSOR_DIMENSIONS", "bad",
       [] {
         return BadTensor({4, 0});
       }},
      {"NegativeDimension", "TENSOR_DIMENSIONS", "bad", [] { return BadTensor({uint64_t{1} << 63}); }},
      {"ProductWraps", "TENSOR_SIZE_OVERFLOW", "bad",
       [] {
         return BadTensor({uint64_t{1} << 32, uint64_t{1} << 32, 1});
       }},
      {"ProductWrapsToSmall", "TENSOR_SIZE_OVERFLOW", "bad",
       [] {
         return BadTensor({4, uint64_t{1} << 62, 4});
       }},
      {"BytesWrap", "TENSOR_SIZE_OVERFLOW", "bad",
       [] {
         return BadTensor({uint64_t{1} << 61, 3});
       }},
      {"HalfBlock", "TENSOR_BLOCK", "\"bad\" rows of 16",
       [] {
         return BadTensor({16, 2}, 2);
       }},
      {"HalfSuperBlock", "TENSOR_BLOCK", "Q4_K blocks of 256",
       [] {
         return BadTensor({128, 2}, 12);
       }},
      {"UnsupportedType", "GGUF_TENSOR_TYPE", "\"bad\" has ggml type 13",
       [] { return BadTensor({256}, 13); }},
      {"UnknownTensorType", "GGUF_TENSOR_TYPE", "bad", [] { return BadTensor({4}, 0x80000000); }},
      {"DuplicateTensor", "GGUF_DUPLICATE_TENSOR", "first",
       [] { return Edit([](GgufBuilder& b) { b.AddF32("first", {1}, {1}); }); }},
      {"EmptyTensorName", "GGUF_NAME_LENGTH", "tensor name",
       [] { return Edit([](GgufBuilder& b) { b.AddF32("", {1}, {1}); }); }},
      {"LongTensorName", "GGUF_NAME_LENGTH", "65 bytes",
       [] { return Edit([](GgufBuilder& b) { b.AddF32(std::string(65, 'n'), {1}, {1}); }); }},
      {"Misaligned", "GGUF_OFFSET_ALIGNMENT", "\"bad\" starts at offset 68",
       [] { return BadTensor({4}, 0, 68); }},
      {"PastTheEnd", "GGUF_OFFSET_RANGE", "bad", [] { return BadTensor({4}, 0, int64_t{1} << 40); }},
      {"OffsetWraps", "GGUF_OFFSET_RANGE", "bad",
       [] {
         std::string bytes = BadTensor({4}, 0, 0x4142434445464740);
         const size_t at = bytes.find(RawBytes<uint64_t>(0x4142434445464740));
         return bytes.replace(at, 8, RawBytes<uint64_t>(uint64_t{0} - 32));
       }},
      {"LongerThanTheFile", "GGUF_OFFSET_RANGE", "bad", [] { return BadTensor({17}); }},
      {"Overlap", "GGUF_OVERLAP", "\"bad\" overlaps tensor \"second\"", [] { return BadTensor({4}, 0, 32); }},
      {"Control characters are escaped", "GGUF_TENSOR_TYPE", "\"a\\nb\"",
       [] { return Edit([](GgufBuilder& b) {
              b.Add({"a\nb", {1}, 99, "xxxx"});
            }); }},
  };
}

void ExpectAllRefused(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.label);
    const std::string bytes = refusal.make();
    const absl::Status status = GgufFile::Parse(bytes).status();
    ExpectRefused(status, refusal.reason, refusal.names);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST(Gguf, RefusesBadPreambles) { ExpectAllRefused(PreambleRefusals()); }
TEST(Gguf, RefusesBadMetadata) { ExpectAllRefused(ValueRefusals()); }
TEST(Gguf, RefusesBadTensors) { ExpectAllRefused(TensorRefusals()); }

TEST(Gguf, OpenNamesTheFile) {
  ExpectRefused(GgufFile::Open("/nonexistent/model.gguf").status(), "FILE_ERROR", "/nonexistent/model.gguf");
  ExpectRefused(GgufFile::Open(RIDGEFILL_SOURCE_DIR "/tests/data/formats/vectors.json").status(),
                "GGUF_MAGIC", "vectors.json");
}

}  // namespace
}  // namespace ridgefill::formats
