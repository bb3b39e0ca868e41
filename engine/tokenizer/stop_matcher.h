// Stop strings in streamed text, found across the borders of pieces.
//
// The answer ends at the first character that completes a stop string (of several that end there: the
// longest), and the stop string is not part of it. Text is held back only while it can still become a match;
// none is lost, none leaks, and the outcome does not depend on how the text is cut into pieces.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridgefill::tokenizer {

struct StopResult {
  std::string emit;      // text that is final now
  bool stopped = false;  // a stop string is complete; `emit` holds all text before it
  int matched = -1;      // index of that stop string
};

// One per answer; not thread-safe. Owns its strings.
class StopMatcher {
 public:
  // INVALID_ARGUMENT, field `stop`: an empty string or invalid UTF-8. No strings at all is fine: nothing is
  // ever held.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stop);

  // `text` is complete UTF-8 (as StreamDecoder gives it). After a stop every call gives {"", true, matched}.
  StopResult Push(absl::string_view text);
  // The end of the answer without a match: what was held back. Empty after a stop.
  std::string Finish();

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;  // Knuth-Morris-Pratt: longest proper border of each prefix
    size_t matched = 0;            // length of the prefix that the text so far ends with
  };
  explicit StopMatcher(std::vector<Pattern> patterns) : patterns_(std::move(patterns)) {}
  int Step(char c);

  std::vector<Pattern> patterns_;
  std::string held_;
  int stopped_by_ = -1;
};

}  // namespace ridgefill::tokenizer
