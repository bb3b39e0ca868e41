// Text to words: the pieces inside which BPE merges. Thread-safe after creation.
#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/spec.h"

namespace ridgefill::tokenizer {

// The pattern as tokenizer.json spells it (empty where the kind has none of its own: SmolLM2 cuts digits,
// then applies GPT-2's), and the name as tokenizer.ggml.pre of a GGUF file spells it.
absl::string_view HuggingFacePattern(PreTokenizerKind kind);
absl::string_view GgufPreName(PreTokenizerKind kind);
inline constexpr PreTokenizerKind kPreTokenizerKinds[] = {PreTokenizerKind::kLlama3, PreTokenizerKind::kQwen2,
                                                          PreTokenizerKind::kSmolLm};

class PreTokenizer {
 public:
  static absl::StatusOr<PreTokenizer> Create(PreTokenizerKind kind);

  // Calls `word` for each piece of valid UTF-8 `text`, in order; together they are the text.
  absl::Status Split(absl::string_view text, Regex::Scratch& scratch,
                     absl::FunctionRef<void(absl::string_view)> word) const;

 private:
  explicit PreTokenizer(std::vector<Regex> stages) : stages_(std::move(stages)) {}
  absl::Status SplitFrom(size_t stage, absl::string_view text, Regex::Scratch& scratch,
                         absl::FunctionRef<void(absl::string_view)> word) const;

  std::vector<Regex> stages_;  // each splits the pieces of the one before
};

}  // namespace ridgefill::tokenizer
