// GPT-2's alphabet: each byte as one printable character, so that a vocabulary of byte strings can be written
// as text.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace ridgefill::tokenizer {

// The bytes that a byte-level string stands for; nullopt when a character is not of the alphabet.
std::optional<std::string> ByteLevelToBytes(absl::string_view text);

}  // namespace ridgefill::tokenizer
