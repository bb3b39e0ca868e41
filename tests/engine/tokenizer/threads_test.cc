// One tokenizer, many threads.
#include <gtest/gtest.h>

#include <thread>

#include "tests/engine/tokenizer/test_data.h"

namespace ridgefill::tokenizer {
namespace {

TEST(TokenizerTest, ServesManyThreads) {
  const auto tokenizer = LoadTokenizer("qwen2");
  const auto strings = ReadJsonData("strings.json").get<std::vector<std::string>>();
  std::vector<std::vector<int32_t>> expected;
  expected.reserve(200);
  for (size_t i = 0; i < 200; ++i) expected.push_back(*tokenizer->Encode(strings[i]));
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < 200; ++i) EXPECT_EQ(*tokenizer->Encode(strings[i]), expected[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ridgefill::tokenizer
