#include "engine/tokenizer/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/tokenizer/utf8.h"

namespace ridgefill::tokenizer {
namespace {

std::vector<size_t> Borders(absl::string_view text) {
  std::vector<size_t> border(text.size(), 0);  // of the prefix that ends here
  for (size_t i = 1, length = 0; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = border[length - 1];
    if (text[i] == text[length]) ++length;
    border[i] = length;
  }
  return border;
}

}  // namespace

absl::StatusOr<StopMatcher> StopMatcher::Create(std::vector<std::string> stop) {
  std::vector<Pattern> patterns;
  for (size_t i = 0; i < stop.size(); ++i) {
    const std::string field = absl::StrCat("stop[", i, "]");
    if (stop[i].empty()) return base::FieldError(field, "STOP_EMPTY", "a stop string must not be empty");
    if (const auto offset = FindInvalidUtf8(stop[i])) {
      return base::FieldError(field, "INVALID_UTF8", absl::StrCat("not valid UTF-8 at byte ", *offset));
    }
    std::vector<size_t> fallback = Borders(stop[i]);
    patterns.push_back({std::move(stop[i]), std::move(fallback)});
  }
  return StopMatcher(std::move(patterns));
}

// Index of the longest pattern that ends with `c`, or -1.
int StopMatcher::Step(char c) {
  int found = -1;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    Pattern& pattern = patterns_[i];
    while (pattern.matched > 0 && pattern.text[pattern.matched] != c) {
      pattern.matched = pattern.fallback[pattern.matched - 1];
    }
    if (pattern.text[pattern.matched] == c) ++pattern.matched;
    const bool longest = found < 0 || pattern.text.size() > patterns_[found].text.size();
    if (pattern.matched == pattern.text.size() && longest) found = static_cast<int>(i);
  }
  return found;
}

StopResult StopMatcher::Push(absl::string_view text) {
  if (stopped_by_ >= 0) return {"", true, stopped_by_};
  for (char c : text) {
    held_.push_back(c);
    stopped_by_ = Step(c);
    if (stopped_by_ < 0) continue;
    held_.resize(held_.size() - patterns_[stopped_by_].text.size());
    return {std::exchange(held_, ""), true, stopped_by_};
  }
  size_t keep = 0;  // the longest end of the text that may become a match
  for (const Pattern& pattern : patterns_) keep = std::max(keep, pattern.matched);
  StopResult result{held_.substr(0, held_.size() - keep)};
  held_.erase(0, held_.size() - keep);
  return result;
}

std::string StopMatcher::Finish() { return std::exchange(held_, ""); }

}  // namespace ridgefill::tokenizer
