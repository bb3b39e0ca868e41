#include "services/router/answer.h"

#include <utility>

#include "engine/base/status.h"

namespace ridgefill::router {

absl::StatusOr<Answer> Answer::Create(const tokenizer::Tokenizer* tokenizer,
                                      std::vector<std::string> stop_strings, int min_tokens) {
  RF_ASSIGN_OR_RETURN(auto matcher, tokenizer::StopMatcher::Create(stop_strings));
  return Answer(tokenizer, std::move(stop_strings), std::move(matcher), min_tokens);
}

bool Answer::Push(const v1::GeneratedToken& token, v1::Delta& delta) {
  *delta.add_tokens() = token;
  ++tokens_;
  if (token.is_stop()) return false;
  const std::string text = decoder_.Push(token.id());
  if (tokens_ <= min_tokens_) {
    delta.mutable_text()->append(text);
    return false;
  }
  return Match(text, delta);
}

void Answer::Finish(v1::Delta& delta) {
  if (!stop_string_.empty() || Match(decoder_.Finish(), delta)) return;
  delta.mutable_text()->append(matcher_.Finish());
}

bool Answer::Match(const std::string& text, v1::Delta& delta) {
  const tokenizer::StopResult result = matcher_.Push(text);
  delta.mutable_text()->append(result.emit);
  if (result.stopped) stop_string_ = stop_strings_[result.matched];
  return result.stopped;
}

}  // namespace ridgefill::router
