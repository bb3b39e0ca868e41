#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/formats/quote.h"
#include "engine/tokenizer/loaders.h"
#include "engine/tokenizer/pre_tokenizer.h"

namespace ridgefill::tokenizer {
namespace {

using formats::GgufFile;
using formats::Quote;

// tokenizer.ggml.token_type.
enum GgufTokenType { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

absl::Status Unsupported(absl::string_view what, absl::string_view supported) {
  return base::Error(absl::StatusCode::kInvalidArgument, "TOKENIZER_UNSUPPORTED",
                     absl::StrCat("GGUF: ", what, " is not supported; supported: ", supported));
}

absl::Status Invalid(absl::string_view what) {
  return base::Error(absl::StatusCode::kInvalidArgument, "TOKENIZER_INVALID", absl::StrCat("GGUF: ", what));
}

absl::Status ReadKind(const GgufFile& file, TokenizerSpec& spec) {
  RF_ASSIGN_OR_RETURN(const absl::string_view model, file.GetString("tokenizer.ggml.model"));
  if (model != "gpt2")
    return Unsupported(absl::StrCat("tokenizer.ggml.model ", Quote(model)), "gpt2 (byte-level BPE)");
  RF_ASSIGN_OR_RETURN(const absl::string_view pre, file.GetStringOr("tokenizer.ggml.pre", ""));
  for (PreTokenizerKind kind : kPreTokenizerKinds) {
    if (pre != GgufPreName(kind)) continue;
    spec.pre_tokenizer = kind;
    // What GGUF leaves to its reader to know.
    if (kind == PreTokenizerKind::kQwen2) spec.normalizer = NormalizerKind::kNfc;
    spec.ignore_merges = kind == PreTokenizerKind::kLlama3;
    return absl::OkStatus();
  }
  return Unsupported(absl::StrCat("tokenizer.ggml.pre ", Quote(pre)), "llama-bpe, qwen2, smollm");
}

absl::Status ReadTokens(const GgufFile& file, TokenizerSpec& spec) {
  RF_ASSIGN_OR_RETURN(const auto tokens, file.GetStrings("tokenizer.ggml.tokens"));
  std::vector<int64_t> types(tokens.size(), kNormal);
  if (file.Has("tokenizer.ggml.token_type")) {
    RF_ASSIGN_OR_RETURN(types, file.GetInts("tokenizer.ggml.token_type"));
    if (types.size() != tokens.size())
      return Invalid("tokenizer.ggml.token_type and tokens differ in length");
  }
  spec.vocab.resize(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] == kUnused) continue;
    spec.vocab[id] = std::string(tokens[id]);
    if (types[id] != kControl && types[id] != kUserDefined) continue;
    AddedToken added;
    added.id = static_cast<int32_t>(id);
    added.content = std::string(tokens[id]);
    added.special = types[id] == kControl;
    spec.added.push_back(std::move(added));
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const GgufFile& file, TokenizerSpec& spec) {
  RF_ASSIGN_OR_RETURN(const auto merges, file.GetStrings("tokenizer.ggml.merges"));
  spec.merges.reserve(merges.size());
  for (absl::string_view merge : merges) {
    const size_t space = merge.find(' ');
    if (space == absl::string_view::npos || merge.find(' ', space + 1) != absl::string_view::npos) {
      return Invalid(absl::StrCat("merge ", spec.merges.size(), " is not two tokens"));
    }
    spec.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  return absl::OkStatus();
}

// The token id under `key`; nothing when the key is missing or names no token.
absl::StatusOr<std::optional<int32_t>> ReadTokenId(const GgufFile& file, absl::string_view key,
                                                   size_t vocab_size) {
  RF_ASSIGN_OR_RETURN(const int64_t id, file.GetIntOr(key, -1));
  if (id < 0 || static_cast<size_t>(id) >= vocab_size) return std::optional<int32_t>();
  return std::optional<int32_t>(static_cast<int32_t>(id));
}

absl::Status ReadSpecialIds(const GgufFile& file, TokenizerSpec& spec) {
  const size_t size = spec.vocab.size();
  RF_ASSIGN_OR_RETURN(const auto bos, ReadTokenId(file, "tokenizer.ggml.bos_token_id", size));
  RF_ASSIGN_OR_RETURN(const auto eos, ReadTokenId(file, "tokenizer.ggml.eos_token_id", size));
  if (bos.has_value()) spec.bos_token = spec.vocab[*bos];
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    RF_ASSIGN_OR_RETURN(const auto id, ReadTokenId(file, key, size));
    if (id.has_value()) spec.eos_ids.push_back(*id);
  }
  const bool llama3 = spec.pre_tokenizer == PreTokenizerKind::kLlama3;  // its files may leave the key out
  RF_ASSIGN_OR_RETURN(const bool add_bos, file.GetBoolOr("tokenizer.ggml.add_bos_token", llama3));
  RF_ASSIGN_OR_RETURN(const bool add_eos, file.GetBoolOr("tokenizer.ggml.add_eos_token", false));
  if (add_bos && bos.has_value()) spec.prefix_ids.push_back(*bos);
  if (add_eos && eos.has_value()) spec.suffix_ids.push_back(*eos);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> SpecFromGguf(const GgufFile& file) {
  TokenizerSpec spec;
  RF_RETURN_IF_ERROR(ReadKind(file, spec));
  RF_RETURN_IF_ERROR(ReadTokens(file, spec));
  RF_RETURN_IF_ERROR(ReadMerges(file, spec));
  RF_RETURN_IF_ERROR(ReadSpecialIds(file, spec));
  RF_ASSIGN_OR_RETURN(const absl::string_view chat, file.GetStringOr("tokenizer.chat_template", ""));
  spec.chat_template = std::string(chat);
  return spec;
}

}  // namespace ridgefill::tokenizer
