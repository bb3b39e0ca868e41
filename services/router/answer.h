// Generated tokens to the text that a client sees: decoding, stop strings, what is held back and let go.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/stop_matcher.h"
#include "engine/tokenizer/stream_decoder.h"
#include "ridgefill/v1/generation.pb.h"

namespace ridgefill::router {

// One per request; not thread-safe. `tokenizer` must outlive it.
class Answer {
 public:
  // Stop strings are looked for from token `min_tokens` on; what came before can be no part of one.
  static absl::StatusOr<Answer> Create(const tokenizer::Tokenizer* tokenizer,
                                       std::vector<std::string> stop_strings, int min_tokens);

  // Appends the token and the text that is final now to `delta`. True when a stop string is complete: the
  // answer is over.
  bool Push(const v1::GeneratedToken& token, v1::Delta& delta);
  // The end without a stop string: appends what was held back.
  void Finish(v1::Delta& delta);

  int64_t tokens() const { return tokens_; }
  const std::string& stop_string() const { return stop_string_; }  // the complete one; else empty

 private:
  Answer(const tokenizer::Tokenizer* tokenizer, std::vector<std::string> stop_strings,
         tokenizer::StopMatcher matcher, int min_tokens)
      : decoder_(tokenizer),
        stop_strings_(std::move(stop_strings)),
        matcher_(std::move(matcher)),
        min_tokens_(min_tokens) {}
  bool Match(const std::string& text, v1::Delta& delta);

  tokenizer::StreamDecoder decoder_;
  std::vector<std::string> stop_strings_;
  tokenizer::StopMatcher matcher_;
  int min_tokens_;
  int64_t tokens_ = 0;
  std::string stop_string_;
};

}  // namespace ridgefill::router
