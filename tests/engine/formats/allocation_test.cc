// No parser takes more memory than the file justifies, whatever its counts claim. This program counts every
// allocation.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/formats/gguf.h"
#include "engine/formats/json.h"
#include "engine/formats/safetensors.h"
#include "tests/engine/formats/gguf_builder.h"

namespace {
std::atomic<uint64_t> allocated{0};
}  // namespace

void* operator new(size_t size) {
  allocated += size;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace ridgefill::formats {
namespace {

// Bytes allocated, freed or not, while `run` runs.
template <typename Run>
uint64_t Allocated(Run&& run) {
  const uint64_t before = allocated;
  run();
  return allocated - before;
}

// What parsing may take: room for an error message, and a small multiple of the file.
uint64_t Bound(size_t file_bytes) { return 16384 + 64 * static_cast<uint64_t>(file_bytes); }

TEST(Allocation, TheCounterCounts) {
  EXPECT_GE(Allocated([] { std::string(5000, 'x').c_str(); }), 5000u);
}

TEST(Allocation, HugeGgufCountsCostNothing) {
  constexpr uint64_t kHuge[] = {uint64_t{1} << 24, uint64_t{1} << 32, uint64_t{1} << 61, ~uint64_t{0}};
  for (const uint64_t huge : kHuge) {
    std::vector<GgufBuilder> builders(6);
    builders[0].tensor_count = static_cast<int64_t>(huge >> 1);
    builders[1].value_count = static_cast<int64_t>(huge >> 1);
    builders[2].Array("key", 8, huge, "");
    builders[3].Array("key", 4, huge, "");
    builders[4].Raw("key", 8, RawBytes(huge));
    builders[5].Add({"name", {huge}, 0, ""});
    for (const GgufBuilder& builder : builders) {
      const std::string bytes = builder.Build();
      const uint64_t taken = Allocated([&] { EXPECT_FALSE(GgufFile::Parse(bytes).ok()); });
      EXPECT_LE(taken, Bound(bytes.size()));
    }
  }
}

TEST(Allocation, AValidGgufTakesASmallMultiple) {
  GgufBuilder builder;
  for (int i = 0; i < 2000; ++i) builder.U32("k" + std::to_string(i), 1);
  for (int i = 0; i < 2000; ++i) builder.AddF32("t" + std::to_string(i), {1}, {1});
  const std::string bytes = builder.Build();
  const uint64_t taken = Allocated([&] { EXPECT_TRUE(GgufFile::Parse(bytes).ok()); });
  EXPECT_LE(taken, Bound(bytes.size()));
}

TEST(Allocation, HugeSafetensorsClaimsCostNothing) {
  for (const uint64_t length : {uint64_t{1} << 26, uint64_t{1} << 40, ~uint64_t{0}}) {
    const std::string bytes = RawBytes(length) + "{}";
    EXPECT_LE(Allocated([&] { EXPECT_FALSE(SafetensorsFile::Parse(bytes).ok()); }), Bound(bytes.size()));
  }
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[1073741824,1024],"data_offsets":[0,4398046511104]}})";
  const std::string bytes = RawBytes<uint64_t>(header.size()) + header;
  EXPECT_LE(Allocated([&] { EXPECT_FALSE(SafetensorsFile::Parse(bytes).ok()); }), Bound(bytes.size()));
}

TEST(Allocation, JsonTakesASmallMultiple) {
  std::string arrays = "[";
  for (int i = 0; i < 20000; ++i) arrays += "[],";
  arrays += "[]]";
  EXPECT_LE(Allocated([&] { EXPECT_TRUE(ParseJson(arrays).ok()); }), Bound(arrays.size()));
}

}  // namespace
}  // namespace ridgefill::formats
