// Text to token ids and back, with the ids that Hugging Face `tokenizers` gives: byte-level BPE as Llama-3,
// Qwen2 and SmolLM2 use it, from a Hugging Face folder or from GGUF metadata. Any other kind of tokenizer is
// refused by name.
//
// Encoding takes time O(n log n) whatever the text. Immutable after creation and thread-safe; owns all it
// needs (no view into the file it came from).
//
// Errors: INVALID_ARGUMENT with reason INVALID_UTF8 (metadata `offset`), TOKEN_ID_RANGE,
// CHAT_ROLE_UNSUPPORTED or CHAT_EMPTY for input; FAILED_PRECONDITION with reason CHAT_TEMPLATE_UNSUPPORTED
// when the model's template is not known; TOKENIZER_UNSUPPORTED or TOKENIZER_INVALID (both INVALID_ARGUMENT)
// when a model's files are not usable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/tokenizer/spec.h"

namespace ridgefill::formats {
class GgufFile;
}

namespace ridgefill::tokenizer {

struct EncodeOptions {
  bool add_special = true;  // bos and the like, where the model's files ask for them
  bool parse_special =
      true;  // text such as "<|im_end|>" becomes that token; off: it is plain text (untrusted input)
};

struct DecodeOptions {
  bool skip_special = true;  // control tokens leave no text
};

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

struct ChatOptions {
  bool add_generation_prompt = true;  // open the assistant's turn at the end
  // Today, as "26 Jul 2024", for templates that write it into the system turn (Llama 3.2); empty: the
  // template's own fallback, so that the same messages always give the same tokens.
  std::string date;
};

class Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerSpec spec);

  // tokenizer.json, and beside it, where present, tokenizer_config.json, chat_template.jinja,
  // generation_config.json and config.json.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromHuggingFace(const std::string& folder);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const formats::GgufFile& file);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view utf8,
                                              const EncodeOptions& options = {}) const;

  // Valid UTF-8 always: bytes that are not become U+FFFD. An id outside [0, vocab_size) is TOKEN_ID_RANGE.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids, const DecodeOptions& options = {}) const;

  // The prompt of a conversation as text, equal to the model's own template.
  absl::StatusOr<std::string> ApplyChatTemplate(absl::Span<const ChatMessage> messages,
                                                const ChatOptions& options = {}) const;
  // The same as token ids, which is what a server feeds to a model: equal to encoding the text above, except
  // that special tokens spelt out inside a message stay plain text. Adds no bos of its own: the template has
  // it.
  absl::StatusOr<std::vector<int32_t>> EncodeChat(absl::Span<const ChatMessage> messages,
                                                  const ChatOptions& options = {}) const;

  int vocab_size() const;  // highest id in use + 1; a model's logits may have more rows (padding)
  // End of sequence, turn and message: those of the model's files, and the special tokens by which models of
  // these families end a turn or a document (<|im_end|>, <|eot_id|>, <|eom_id|>, <|endoftext|>,
  // <|end_of_text|>). Ascending.
  const std::vector<int32_t>& stop_ids() const;
  bool IsSpecial(int32_t id) const;  // control token; false for any unknown id
  // Raw bytes of one token, not always UTF-8 by themselves; empty for an unknown id.
  absl::string_view TokenBytes(int32_t id) const;
  // SHA-256 in hex over pre-tokenizer, normalizer, ignore_merges, every token's id and bytes, added tokens
  // with their flags, and the merges: what decides ids. Not in it: chat template, bos/eos settings, unused
  // padding tokens. The same from tokenizer.json and GGUF, where the added tokens' strip and word flags are
  // off (GGUF cannot hold them).
  const std::string& digest() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace ridgefill::tokenizer
