#include "engine/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "engine/base/sha256.h"
#include "engine/base/status.h"
#include "engine/formats/quote.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/chat_template.h"
#include "engine/tokenizer/loaders.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pre_tokenizer.h"
#include "engine/tokenizer/utf8.h"

namespace ridgefill::tokenizer {
namespace {

constexpr size_t kMaxVocab = size_t{1} << 20;
constexpr size_t kMaxAddedBytes = 1024;  // of one added token: bounds the work at each byte of a text
constexpr size_t kMaxTextBytes = size_t{256} << 20;  // positions are 32 bits wide

// Tokens by which the supported families end a turn or a document, whether or not a model's files say so.
constexpr absl::string_view kEndTokens[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>",
                                            "<|end_of_text|>"};

absl::Status Invalid(absl::string_view what) {
  return base::Error(absl::StatusCode::kInvalidArgument, "TOKENIZER_INVALID", what);
}

absl::Status CheckUtf8(absl::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return base::Error(absl::StatusCode::kInvalidArgument, "TEXT_TOO_LONG",
                       absl::StrCat("a text may have ", kMaxTextBytes, " bytes, got ", text.size()));
  }
  const std::optional<size_t> offset = FindInvalidUtf8(text);
  if (!offset.has_value()) return absl::OkStatus();
  return base::Error(absl::StatusCode::kInvalidArgument, "INVALID_UTF8",
                     absl::StrCat("the text is not valid UTF-8 at byte ", *offset),
                     {{"offset", absl::StrCat(*offset)}});
}

// Brings the added tokens into the vocabulary and checks both.
absl::Status CompleteVocab(TokenizerSpec& spec) {
  absl::flat_hash_set<absl::string_view> contents;
  for (const AddedToken& token : spec.added) {
    if (token.id < 0 || static_cast<size_t>(token.id) >= kMaxVocab) {
      return Invalid(absl::StrCat("added token ", formats::Quote(token.content), " has id ", token.id));
    }
    if (token.content.empty() || token.content.size() > kMaxAddedBytes || FindInvalidUtf8(token.content)) {
      return Invalid(
          absl::StrCat("added token ", token.id, " must be 1 to ", kMaxAddedBytes, " bytes of UTF-8"));
    }
    if (!contents.insert(token.content).second) {
      return Invalid(absl::StrCat("added token ", formats::Quote(token.content), " is given twice"));
    }
    if (static_cast<size_t>(token.id) >= spec.vocab.size()) spec.vocab.resize(token.id + 1);
    std::string& entry = spec.vocab[token.id];
    if (!entry.empty() && entry != token.content) {
      return Invalid(absl::StrCat("id ", token.id, " is both ", formats::Quote(entry),
                                  " and the added token ", formats::Quote(token.content)));
    }
    entry = token.content;
  }
  while (!spec.vocab.empty() && spec.vocab.back().empty()) spec.vocab.pop_back();
  if (spec.vocab.empty() || spec.vocab.size() > kMaxVocab) {
    return Invalid(absl::StrCat("a vocabulary has 1 to ", kMaxVocab, " tokens, got ", spec.vocab.size()));
  }
  return absl::OkStatus();
}

absl::Status CheckIds(const TokenizerSpec& spec) {
  absl::flat_hash_set<absl::string_view> seen;
  for (const std::string& token : spec.vocab) {
    if (!token.empty() && !seen.insert(token).second) {
      return Invalid(absl::StrCat("token ", formats::Quote(token), " is in the vocabulary twice"));
    }
  }
  const auto bad = [&](int32_t id) { return id < 0 || static_cast<size_t>(id) >= spec.vocab.size(); };
  if (std::any_of(spec.prefix_ids.begin(), spec.prefix_ids.end(), bad) ||
      std::any_of(spec.suffix_ids.begin(), spec.suffix_ids.end(), bad) ||
      (spec.unk_id != -1 && bad(spec.unk_id))) {
    return Invalid("a bos, eos or unknown token is outside the vocabulary");
  }
  return absl::OkStatus();
}

std::vector<int32_t> StopIds(const TokenizerSpec& spec) {
  std::vector<int32_t> ids;
  for (int32_t id : spec.eos_ids) {
    if (id >= 0 && static_cast<size_t>(id) < spec.vocab.size()) ids.push_back(id);
  }
  for (const AddedToken& token : spec.added) {
    const bool ends =
        std::find(std::begin(kEndTokens), std::end(kEndTokens), token.content) != std::end(kEndTokens);
    if (ends && token.special) ids.push_back(token.id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

class DigestWriter {
 public:
  void Number(int64_t value) { sha_.Update(absl::StrCat(value, ";")); }
  void Bytes(absl::string_view bytes) {
    Number(static_cast<int64_t>(bytes.size()));
    sha_.Update(bytes);
  }
  std::string Finish() { return sha_.HexDigest(); }

 private:
  base::Sha256 sha_;
};

std::string Digest(const TokenizerSpec& spec, const std::vector<std::string>& token_bytes) {
  DigestWriter out;
  out.Bytes("ridgefill tokenizer 1");
  out.Bytes(GgufPreName(spec.pre_tokenizer));
  out.Number(spec.normalizer == NormalizerKind::kNfc);
  out.Number(spec.ignore_merges);
  out.Number(spec.unk_id);
  for (size_t id = 0; id < token_bytes.size(); ++id) {
    if (spec.vocab[id].empty()) continue;
    out.Number(static_cast<int64_t>(id));
    out.Bytes(token_bytes[id]);
  }
  std::vector<AddedToken> added = spec.added;
  std::sort(added.begin(), added.end(), [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  for (const AddedToken& token : added) {
    out.Number(token.id);
    out.Number(token.special | token.lstrip << 1 | token.rstrip << 2 | token.single_word << 3);
  }
  for (const auto& [left, right] : spec.merges) {
    out.Bytes(left);
    out.Bytes(right);
  }
  return out.Finish();
}

// What an added token matches, and decodes to.
absl::StatusOr<std::string> MatchedText(const TokenizerSpec& spec, const AddedToken& token) {
  if (token.normalized && spec.normalizer == NormalizerKind::kNfc) return NormalizeNfc(token.content);
  return token.content;
}

absl::StatusOr<AddedTokenSet> MakeSet(const TokenizerSpec& spec, bool normalized) {
  std::vector<AddedToken> tokens;
  absl::flat_hash_set<std::string> contents;
  for (AddedToken token : spec.added) {
    if (token.normalized != normalized) continue;
    RF_ASSIGN_OR_RETURN(token.content, MatchedText(spec, token));
    if (contents.insert(token.content).second) tokens.push_back(std::move(token));
  }
  return AddedTokenSet::Create(std::move(tokens));
}

absl::StatusOr<std::vector<std::string>> TokenBytesOf(const TokenizerSpec& spec) {
  std::vector<std::string> out;
  out.reserve(spec.vocab.size());
  for (const std::string& token : spec.vocab) out.push_back(ByteLevelToBytes(token).value_or(token));
  for (const AddedToken& token : spec.added) {
    RF_ASSIGN_OR_RETURN(const std::string text, MatchedText(spec, token));
    out[token.id] = ByteLevelToBytes(text).value_or(text);
  }
  return out;
}

}  // namespace

struct Tokenizer::Impl {
  struct Scratch {
    Regex::Scratch regex;
    Bpe::Scratch bpe;
  };

  TokenizerSpec spec;                    // without vocab and merges
  std::vector<std::string> token_bytes;  // id -> raw bytes
  std::vector<bool> special;             // id -> is a control token
  AddedTokenSet raw_added, normalized_added;
  PreTokenizer pre_tokenizer;
  Bpe bpe;  // borrows token_bytes
  std::vector<int32_t> stop_ids;
  std::string digest;
  absl::StatusOr<ChatFormat> chat;

  absl::Status EncodeWords(absl::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const {
    return pre_tokenizer.Split(text, scratch.regex,
                               [&](absl::string_view word) { bpe.EncodeWord(word, scratch.bpe, ids); });
  }

  // Text between the tokens that are matched raw.
  absl::Status EncodePlain(absl::string_view text, bool parse_special, Scratch& scratch,
                           std::vector<int32_t>& ids) const {
    std::string normalized;
    if (spec.normalizer == NormalizerKind::kNfc) {
      RF_ASSIGN_OR_RETURN(normalized, NormalizeNfc(text));
      text = normalized;
    }
    RF_ASSIGN_OR_RETURN(const auto pieces, normalized_added.Split(text, parse_special, scratch.regex));
    for (const AddedTokenSet::Piece& piece : pieces) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
      } else {
        RF_RETURN_IF_ERROR(EncodeWords(piece.text, scratch, ids));
      }
    }
    return absl::OkStatus();
  }

  absl::Status EncodeText(absl::string_view text, bool parse_special, Scratch& scratch,
                          std::vector<int32_t>& ids) const {
    RF_ASSIGN_OR_RETURN(const auto pieces, raw_added.Split(text, parse_special, scratch.regex));
    for (const AddedTokenSet::Piece& piece : pieces) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
      } else {
        RF_RETURN_IF_ERROR(EncodePlain(piece.text, parse_special, scratch, ids));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<ChatPiece>> Render(absl::Span<const ChatMessage> messages,
                                                const ChatOptions& options) const {
    RF_RETURN_IF_ERROR(chat.status());
    for (size_t i = 0; i < messages.size(); ++i) {
      RF_RETURN_IF_ERROR(
          base::WithContext(CheckUtf8(messages[i].content), absl::StrCat("messages[", i, "].content")));
    }
    return RenderChat(*chat, spec.bos_token, messages, options);
  }
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerSpec spec) {
  RF_RETURN_IF_ERROR(CompleteVocab(spec));
  RF_RETURN_IF_ERROR(CheckIds(spec));
  RF_ASSIGN_OR_RETURN(std::vector<std::string> token_bytes, TokenBytesOf(spec));
  std::vector<bool> special(spec.vocab.size());
  for (const AddedToken& token : spec.added) special[token.id] = token.special;
  RF_ASSIGN_OR_RETURN(AddedTokenSet raw_added, MakeSet(spec, /*normalized=*/false));
  RF_ASSIGN_OR_RETURN(AddedTokenSet normalized_added, MakeSet(spec, /*normalized=*/true));
  RF_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Create(spec.pre_tokenizer));
  RF_ASSIGN_OR_RETURN(Bpe bpe, Bpe::Create(spec, token_bytes));
  std::vector<int32_t> stop_ids = StopIds(spec);
  std::string digest = Digest(spec, token_bytes);
  absl::StatusOr<ChatFormat> chat = RecogniseChatTemplate(spec.chat_template);
  spec.vocab = {};
  spec.merges = {};
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::unique_ptr<const Impl>(
      new Impl{std::move(spec), std::move(token_bytes), std::move(special), std::move(raw_added),
               std::move(normalized_added), std::move(pre_tokenizer), std::move(bpe), std::move(stop_ids),
               std::move(digest), std::move(chat)})));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromHuggingFace(const std::string& folder) {
  RF_ASSIGN_OR_RETURN(TokenizerSpec spec, SpecFromHuggingFaceFolder(folder));
  return Create(std::move(spec));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const formats::GgufFile& file) {
  RF_ASSIGN_OR_RETURN(TokenizerSpec spec, SpecFromGguf(file));
  return Create(std::move(spec));
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view utf8,
                                                       const EncodeOptions& options) const {
  RF_RETURN_IF_ERROR(CheckUtf8(utf8));
  Impl::Scratch scratch;
  std::vector<int32_t> ids;
  if (options.add_special) ids = impl_->spec.prefix_ids;
  RF_RETURN_IF_ERROR(impl_->EncodeText(utf8, options.parse_special, scratch, ids));
  if (options.add_special)
    ids.insert(ids.end(), impl_->spec.suffix_ids.begin(), impl_->spec.suffix_ids.end());
  return ids;
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids,
                                              const DecodeOptions& options) const {
  std::string bytes;
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      return base::Error(absl::StatusCode::kInvalidArgument, "TOKEN_ID_RANGE",
                         absl::StrCat("token ids are 0 to ", vocab_size() - 1, ", got ", id));
    }
    if (options.skip_special && IsSpecial(id)) continue;
    bytes += impl_->token_bytes[id];
  }
  return TakeUtf8(bytes, /*final=*/true);
}

absl::StatusOr<std::string> Tokenizer::ApplyChatTemplate(absl::Span<const ChatMessage> messages,
                                                         const ChatOptions& options) const {
  RF_ASSIGN_OR_RETURN(const std::vector<ChatPiece> pieces, impl_->Render(messages, options));
  std::string text;
  for (const ChatPiece& piece : pieces) text += piece.text;
  return text;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeChat(absl::Span<const ChatMessage> messages,
                                                           const ChatOptions& options) const {
  RF_ASSIGN_OR_RETURN(const std::vector<ChatPiece> pieces, impl_->Render(messages, options));
  Impl::Scratch scratch;
  std::vector<int32_t> ids;
  std::string
      text;  // since the last token of the markup: one piece, so that words may span markup and message
  for (const ChatPiece& piece : pieces) {
    if (!piece.markup) {
      text += piece.text;
      continue;
    }
    RF_ASSIGN_OR_RETURN(const auto parts,
                        impl_->raw_added.Split(piece.text, /*parse_special=*/true, scratch.regex));
    for (const AddedTokenSet::Piece& part : parts) {
      if (part.id < 0) {
        text.append(part.text.data(), part.text.size());
        continue;
      }
      RF_RETURN_IF_ERROR(impl_->EncodeText(text, /*parse_special=*/false, scratch, ids));
      text.clear();
      ids.push_back(part.id);
    }
  }
  RF_RETURN_IF_ERROR(impl_->EncodeText(text, /*parse_special=*/false, scratch, ids));
  return ids;
}

int Tokenizer::vocab_size() const { return static_cast<int>(impl_->token_bytes.size()); }
const std::vector<int32_t>& Tokenizer::stop_ids() const { return impl_->stop_ids; }
const std::string& Tokenizer::digest() const { return impl_->digest; }

bool Tokenizer::IsSpecial(int32_t id) const { return id >= 0 && id < vocab_size() && impl_->special[id]; }

absl::string_view Tokenizer::TokenBytes(int32_t id) const {
  return id >= 0 && id < vocab_size() ? absl::string_view(impl_->token_bytes[id]) : absl::string_view();
}

}  // namespace ridgefill::tokenizer
