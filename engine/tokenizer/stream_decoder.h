// Token ids to text as they come: each piece is complete UTF-8, and all pieces together equal
// Tokenizer::Decode of all ids.
#pragma once

#include <cstdint>
#include <string>

#include "engine/tokenizer/tokenizer.h"

namespace ridgefill::tokenizer {

// One per answer; not thread-safe. Borrows the tokenizer, which must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer* tokenizer, DecodeOptions options = {})
      : tokenizer_(tokenizer), options_(options) {}

  // Text that is final now; empty while a UTF-8 sequence is open (at most 3 bytes are held). Bytes that
  // cannot be UTF-8 become U+FFFD. An unknown id gives no text.
  std::string Push(int32_t id);
  // The end: an open sequence becomes one U+FFFD.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  std::string pending_;
};

}  // namespace ridgefill::tokenizer
