// The words of the needle tasks: what engine/eval/needle.h puts together and places.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/base/rng.h"
#include "engine/eval/needle.h"

namespace ridgefill::eval {

// One item before it is placed: `before`, units of haystack with `lines` between them, the pad, `after`.
struct NeedleText {
  std::string before, after;
  std::vector<std::string> lines;  // hidden; the first is the one asked for when one is asked for
  bool in_order = false;           // the lines come in this order
  std::string answer_prefix;
  std::vector<std::string> answers;  // values, in order
  std::function<std::string()> next_unit;
  std::function<std::string(const std::string& words)> pad;  // the last unit, around filler words
};

// Sentences of `text` that are plain: ASCII without digits, of a usual length.
std::vector<std::string> PlainSentences(absl::string_view text);

// Draws from `rng`, and so do next_unit's calls: `sentences` and `rng` must outlive it.
NeedleText MakeNeedleText(Task task, const std::vector<std::string>& sentences, base::Rng& rng);

}  // namespace ridgefill::eval
