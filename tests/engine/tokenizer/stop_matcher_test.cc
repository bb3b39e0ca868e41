#include "engine/tokenizer/stop_matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/rng.h"
#include "engine/base/status.h"

namespace ridgefill::tokenizer {
namespace {

StopMatcher Make(std::vector<std::string> stop) { return *StopMatcher::Create(std::move(stop)); }

TEST(StopMatcherTest, FindsAStopAcrossPieces) {
  StopMatcher matcher = Make({"END"});
  EXPECT_EQ(matcher.Push("so the E").emit, "so the ");
  EXPECT_EQ(matcher.Push("N").emit, "");
  EXPECT_EQ(matcher.Push("NEN").emit,
            "EN"
            "N");
  const StopResult last = matcher.Push("D and more");
  EXPECT_TRUE(last.stopped);
  EXPECT_EQ(last.emit, "");
  EXPECT_EQ(last.matched, 0);
  EXPECT_EQ(matcher.Finish(), "");
  const StopResult after = matcher.Push("late");
  EXPECT_TRUE(after.stopped);
  EXPECT_EQ(after.emit, "");
}

TEST(StopMatcherTest, HoldsBackOnlyWhatCanStillMatch) {
  StopMatcher matcher = Make({"abab", "\n\n"});
  EXPECT_EQ(matcher.Push("xaba").emit, "x");
  EXPECT_EQ(matcher.Push("a").emit,
            "ab"
            "a");  // "abaa": only the last a can begin a match
  EXPECT_EQ(matcher.Push("\n").emit, "a");
  EXPECT_EQ(matcher.Finish(), "\n");
}

TEST(StopMatcherTest, TheLongestOfThoseThatEndTogetherWins) {
  StopMatcher matcher = Make({"lo", "hello"});
  const StopResult result = matcher.Push("say hello");
  EXPECT_EQ(result.emit, "say ");
  EXPECT_EQ(result.matched, 1);
}

TEST(StopMatcherTest, WithoutStringsNothingIsHeld) {
  StopMatcher matcher = Make({});
  EXPECT_EQ(matcher.Push("any").emit, "any");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcherTest, RefusesEmptyAndInvalidStrings) {
  const auto empty = StopMatcher::Create({"a", ""});
  EXPECT_EQ(base::GetErrorDetail(empty.status())->field, "stop[1]");
  EXPECT_EQ(base::GetErrorDetail(StopMatcher::Create({"\xC3"}).status())->reason, "INVALID_UTF8");
}

struct Expected {
  std::string text;
  bool stopped = false;
};

// The obvious way: at each character look whether any stop string ends there.
Expected Search(const std::string& text, const std::vector<std::string>& stop) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& s : stop) {
      if (s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0)
        longest = std::max(longest, s.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

// Whether the rest of a text after `emitted` could still be part of a match.
bool CanBecomeAMatch(const std::string& held, const std::vector<std::string>& stop) {
  for (const std::string& s : stop) {
    if (held.size() < s.size() && s.compare(0, held.size(), held) == 0) return true;
  }
  return held.empty();
}

TEST(StopMatcherTest, EqualsSearchOverAllCuts) {
  base::Rng rng(11);
  const std::string alphabet = "aab";
  const auto word = [&](size_t length) {
    std::string out;
    while (out.size() < length) out += alphabet[rng.NextBelow(alphabet.size())];
    return out;
  };
  int stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stop;
    for (size_t i = rng.NextBelow(4); i > 0; --i) stop.push_back(word(2 + rng.NextBelow(6)));
    const std::string text = word(rng.NextBelow(24));
    StopMatcher matcher = Make(stop);
    std::string out;
    StopResult last;
    for (size_t at = 0; at < text.size() && !last.stopped;) {
      const size_t length = 1 + rng.NextBelow(5);
      last = matcher.Push(absl::string_view(text).substr(at, length));
      at = std::min(text.size(), at + length);
      out += last.emit;
      EXPECT_TRUE(last.stopped || CanBecomeAMatch(text.substr(out.size(), at - out.size()), stop));
    }
    out += matcher.Finish();
    const Expected expected = Search(text, stop);
    ASSERT_EQ(out, expected.text) << text;
    ASSERT_EQ(last.stopped, expected.stopped);
    stopped += expected.stopped;
  }
  EXPECT_GT(stopped, 500);
}

}  // namespace
}  // namespace ridgefill::tokenizer
