// Against vectors.json, which the public `gguf` package made (tests/data/formats/make_vectors.py).
#include <gtest/gtest.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "engine/base/file.h"
#include "engine/formats/json.h"
#include "engine/formats/tensor.h"
#include "tests/engine/formats/refusals.h"

namespace ridgefill::formats {
namespace {

class DequantizeTest : public testing::TestWithParam<Encoding> {
 protected:
  void SetUp() override {
    const auto text = base::ReadFile(RIDGEFILL_SOURCE_DIR "/tests/data/formats/vectors.json");
    ASSERT_TRUE(text.ok()) << text.status();
    const auto vectors = ParseJson(*text);
    ASSERT_TRUE(vectors.ok()) << vectors.status();
    const std::string name(EncodingName(GetParam()));
    bytes_ = absl::HexStringToBytes(*GetString(*vectors, name + "/bytes"));
    const std::string raw = absl::HexStringToBytes(*GetString(*vectors, name + "/values"));
    expected_.resize(raw.size() / sizeof(float));
    std::memcpy(expected_.data(), raw.data(), raw.size());
  }

  std::string bytes_;
  std::vector<float> expected_;
};

TEST_P(DequantizeTest, IsBitEqualToTheReference) {
  std::vector<float> values(expected_.size());
  ASSERT_TRUE(Dequantize(GetParam(), bytes_, 0, absl::MakeSpan(values)).ok());
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t actual, expected;
    std::memcpy(&actual, &values[i], 4);
    std::memcpy(&expected, &expected_[i], 4);
    ASSERT_EQ(actual, expected) << "element " << i << ": " << values[i] << " and " << expected_[i];
  }
}

TEST_P(DequantizeTest, PiecesEqualTheWhole) {
  const size_t block = static_cast<size_t>(BlockElements(GetParam()));
  std::vector<float> piece(block);
  for (size_t begin = 0; begin < expected_.size(); begin += block) {
    ASSERT_TRUE(Dequantize(GetParam(), bytes_, static_cast<int64_t>(begin), absl::MakeSpan(piece)).ok());
    ASSERT_EQ(std::memcmp(piece.data(), &expected_[begin], block * sizeof(float)), 0) << begin;
  }
}

TEST_P(DequantizeTest, RefusesWhatIsNotThere) {
  const int64_t block = BlockElements(GetParam());
  const int64_t size = static_cast<int64_t>(expected_.size());
  std::vector<float> out(static_cast<size_t>(block));
  const auto refuse = [&](int64_t begin, size_t count) {
    std::vector<float> room(count);
    ExpectRefused(Dequantize(GetParam(), bytes_, begin, absl::MakeSpan(room)), "TENSOR_RANGE",
                  std::string(EncodingName(GetParam())));
  };
  refuse(size, out.size());
  refuse(-block, out.size());
  refuse(size - block, 2 * out.size());
  refuse(std::numeric_limits<int64_t>::max() / block * block, out.size());
  if (block > 1) {
    refuse(1, out.size());
    refuse(0, 1);
  }
  bytes_.pop_back();
  refuse(size - block, out.size());
}

INSTANTIATE_TEST_SUITE_P(All, DequantizeTest,
                         testing::Values(Encoding::kF32, Encoding::kF16, Encoding::kBF16, Encoding::kQ4_0,
                                         Encoding::kQ4_1, Encoding::kQ8_0, Encoding::kQ4_K, Encoding::kQ6_K),
                         [](const auto& info) { return std::string(EncodingName(info.param)); });

TEST(Dequantize, RefusesEncodingsThatAreNoWeights) {
  std::vector<float> out(1);
  const std::string bytes(8, '\0');
  for (const Encoding encoding : {Encoding::kF64, Encoding::kI8, Encoding::kI64, Encoding::kBool}) {
    ExpectRefused(Dequantize(encoding, bytes, 0, absl::MakeSpan(out)), "TENSOR_ENCODING",
                  std::string(EncodingName(encoding)));
  }
}

}  // namespace
}  // namespace ridgefill::formats
