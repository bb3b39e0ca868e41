// Chat prompts of the two families that the project knows: ChatML (SmolLM2, Qwen2, Qwen2.5) and Llama 3
// headers.
//
// No Jinja engine: the model's template is brought into a canonical form (white space, quotes, string
// concatenation), branches that only tools reach are cut away, and what is left must be one of a few known
// programs. So a template is either rendered exactly as Hugging Face renders it or refused. Thread-safe: pure
// functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/tokenizer/tokenizer.h"

namespace ridgefill::tokenizer {

struct ChatFormat {
  enum class Family { kChatMl, kLlama3 };
  Family family = Family::kChatMl;
  // ChatML: text of the system turn that the template writes when the first message is not one;
  // has_default_system false: it writes none.
  bool has_default_system = false;
  std::string default_system;
  // Llama 3: the prompt starts with bos; 3.1 and later always write a system turn that opens with two dates.
  bool starts_with_bos = false;
  bool writes_dates = false;
  bool date_is_today = false;  // 3.2: by strftime_now; else `date` is fixed
  std::string date;            // the template's own, also the fallback for today's
  bool prompt_always = false;  // the first Llama 3 template opens the assistant's turn unasked
};

// A piece of a rendered prompt. `markup` is the template's own text, in which special tokens are meant; the
// rest comes from a message, where they are not.
struct ChatPiece {
  bool markup = false;
  std::string text;
};

// FAILED_PRECONDITION with reason CHAT_TEMPLATE_UNSUPPORTED, saying what is supported and what was found.
absl::StatusOr<ChatFormat> RecogniseChatTemplate(absl::string_view jinja);

// INVALID_ARGUMENT: CHAT_EMPTY, CHAT_ROLE_UNSUPPORTED.
absl::StatusOr<std::vector<ChatPiece>> RenderChat(const ChatFormat& format, absl::string_view bos_token,
                                                  absl::Span<const ChatMessage> messages,
                                                  const ChatOptions& options);

}  // namespace ridgefill::tokenizer
