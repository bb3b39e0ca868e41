// UTF-8 as the Unicode standard's table 3-7 has it (no surrogates, no overlong forms). Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace ridgefill::tokenizer {

// What stands at the start of some bytes.
struct Utf8Step {
  enum Kind {
    kValid,       // a whole sequence
    kInvalid,     // not a sequence: `length` bytes (the maximal subpart) are one U+FFFD
    kIncomplete,  // the bytes end inside a sequence that could still be valid
  };
  Kind kind = kInvalid;
  int length = 1;
  uint32_t code_point = 0;  // of kValid
};

Utf8Step NextUtf8(absl::string_view bytes);  // `bytes` is not empty

// Offset of the first byte that is not part of a valid sequence.
std::optional<size_t> FindInvalidUtf8(absl::string_view bytes);

// Takes the complete sequences off the front of `pending`, U+FFFD for what is invalid; at the end (`final`)
// also for an incomplete rest, which else stays.
std::string TakeUtf8(std::string& pending, bool final);

void AppendUtf8(uint32_t code_point, std::string& out);

// The Unicode property White_Space.
bool IsWhiteSpace(uint32_t code_point);

// Start of the last sequence of valid, non-empty `bytes`.
size_t LastUtf8Start(absl::string_view bytes);

}  // namespace ridgefill::tokenizer
