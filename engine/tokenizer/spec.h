// What a byte-level BPE tokenizer is, free of any file format: the loaders fill it, Tokenizer::Create checks
// it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ridgefill::tokenizer {

// How text is cut into words before the merges; each kind is one fixed set of patterns (pre_tokenizer.cc).
enum class PreTokenizerKind {
  kLlama3,  // up to three digits a word; GGUF `llama-bpe`
  kQwen2,   // one digit a word; GGUF `qwen2`
  kSmolLm,  // GPT-2's pattern after single digits; GGUF `smollm`
};

enum class NormalizerKind { kNone, kNfc };

// A token matched in the text itself, before any merge. Flags as in Hugging Face `tokenizers`.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special =
      false;  // control token: skipped when decoding, plain text when EncodeOptions.parse_special is off
  bool lstrip = false;       // swallows the white space before it
  bool rstrip = false;       // swallows the white space after it
  bool single_word = false;  // matches only between non-word characters
  bool normalized = false;   // matched in the normalised text, else in the raw text
};

struct TokenizerSpec {
  std::vector<std::string> vocab;  // id -> byte-level string; empty: no token of the model has this id
  std::vector<std::pair<std::string, std::string>> merges;  // byte-level strings, best first
  std::vector<AddedToken> added;
  PreTokenizerKind pre_tokenizer = PreTokenizerKind::kLlama3;
  NormalizerKind normalizer = NormalizerKind::kNone;
  bool ignore_merges = false;       // a word that is a token is not built from merges
  int32_t unk_id = -1;              // for bytes that the vocabulary lacks; -1: they are dropped
  std::vector<int32_t> prefix_ids;  // put before an encoded text (usually bos, or nothing)
  std::vector<int32_t> suffix_ids;  // put after it (usually nothing)
  std::vector<int32_t> eos_ids;     // ids that the model's files call end of sequence, turn or message
  std::string bos_token;            // text of bos for the chat template; empty: the model names none
  std::string chat_template;        // Jinja text; empty: the model has none
};

}  // namespace ridgefill::tokenizer
