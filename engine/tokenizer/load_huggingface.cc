#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/file.h"
#include "engine/base/status.h"
#include "engine/formats/json.h"
#include "engine/formats/quote.h"
#include "engine/tokenizer/loaders.h"
#include "engine/tokenizer/pre_tokenizer.h"

namespace ridgefill::tokenizer {
namespace {

using formats::FindJson;
using formats::Json;
using formats::Quote;

// Ids above this would cost more memory than any real vocabulary needs.
constexpr int64_t kMaxId = int64_t{1} << 20;

absl::Status Unsupported(absl::string_view what, absl::string_view supported) {
  return base::Error(absl::StatusCode::kInvalidArgument, "TOKENIZER_UNSUPPORTED",
                     absl::StrCat("tokenizer.json: ", what, " is not supported; supported: ", supported));
}

absl::Status Invalid(absl::string_view what) {
  return base::Error(absl::StatusCode::kInvalidArgument, "TOKENIZER_INVALID",
                     absl::StrCat("tokenizer.json: ", what));
}

absl::Status CheckId(int64_t id, absl::string_view content) {
  if (id >= 0 && id < kMaxId) return absl::OkStatus();
  return Invalid(absl::StrCat("token ", Quote(content), " has id ", id, ", allowed are 0 to ", kMaxId - 1));
}

absl::Status ReadVocab(const Json& model, TokenizerSpec& spec) {
  RF_ASSIGN_OR_RETURN(const Json* vocab, formats::GetObject(model, "vocab"));
  for (const auto& [token, id] : vocab->items()) {
    if (!id.is_number_integer())
      return Invalid(absl::StrCat("the id of token ", Quote(token), " is not an integer"));
    if (id.is_number_unsigned() && id.get<uint64_t>() > static_cast<uint64_t>(kMaxId))
      return CheckId(kMaxId, token);
    const int64_t value = id.get<int64_t>();
    RF_RETURN_IF_ERROR(CheckId(value, token));
    if (static_cast<size_t>(value) >= spec.vocab.size()) spec.vocab.resize(value + 1);
    if (!spec.vocab[value].empty()) return Invalid(absl::StrCat("two tokens have the id ", value));
    spec.vocab[value] = token;
  }
  return absl::OkStatus();
}

// Both forms in use: "a b" and ["a", "b"].
absl::Status ReadMerges(const Json& model, TokenizerSpec& spec) {
  RF_ASSIGN_OR_RETURN(const Json* merges, formats::GetArray(model, "merges"));
  spec.merges.reserve(merges->size());
  for (const Json& merge : *merges) {
    if (merge.is_string()) {
      std::vector<std::string> parts = absl::StrSplit(merge.get_ref<const std::string&>(), ' ');
      if (parts.size() != 2) return Invalid(absl::StrCat("merge ", spec.merges.size(), " is not two tokens"));
      spec.merges.emplace_back(std::move(parts[0]), std::move(parts[1]));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      spec.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      return Invalid(absl::StrCat("merge ", spec.merges.size(), " is not two tokens"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckEmptyString(const Json& model, absl::string_view key) {
  RF_ASSIGN_OR_RETURN(const absl::string_view value, formats::GetStringOr(model, key, ""));
  return value.empty() ? absl::OkStatus()
                       : Unsupported(absl::StrCat("model.", key, " ", Quote(value)), "none");
}

std::optional<int32_t> FindId(const TokenizerSpec& spec, absl::string_view token) {
  for (const AddedToken& added : spec.added) {
    if (added.content == token) return added.id;
  }
  const auto found = std::find(spec.vocab.begin(), spec.vocab.end(), token);
  if (token.empty() || found == spec.vocab.end()) return std::nullopt;
  return static_cast<int32_t>(found - spec.vocab.begin());
}

absl::Status ReadModel(const Json& root, TokenizerSpec& spec) {
  RF_ASSIGN_OR_RETURN(const Json* model, formats::GetObject(root, "model"));
  // Files from before the field existed are BPE when they have merges.
  const absl::string_view guess = formats::HasJson(*model, "merges") ? "BPE" : "of unknown type";
  RF_ASSIGN_OR_RETURN(const absl::string_view type, formats::GetStringOr(*model, "type", guess));
  if (type != "BPE") return Unsupported(absl::StrCat("a model of type ", Quote(type)), "BPE (byte-level)");
  RF_ASSIGN_OR_RETURN(const bool byte_fallback, formats::GetBoolOr(*model, "byte_fallback", false));
  if (byte_fallback) return Unsupported("byte_fallback (SentencePiece BPE)", "byte-level BPE");
  RF_RETURN_IF_ERROR(CheckEmptyString(*model, "continuing_subword_prefix"));
  RF_RETURN_IF_ERROR(CheckEmptyString(*model, "end_of_word_suffix"));
  RF_ASSIGN_OR_RETURN(spec.ignore_merges, formats::GetBoolOr(*model, "ignore_merges", false));
  RF_RETURN_IF_ERROR(ReadVocab(*model, spec));
  RF_RETURN_IF_ERROR(ReadMerges(*model, spec));
  RF_ASSIGN_OR_RETURN(const absl::string_view unk, formats::GetStringOr(*model, "unk_token", ""));
  if (unk.empty()) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const bool fuse_unk, formats::GetBoolOr(*model, "fuse_unk", false));
  if (fuse_unk) return Unsupported("fuse_unk", "an unknown token for each unknown byte, or none");
  const std::optional<int32_t> id = FindId(spec, unk);
  if (!id.has_value()) return Invalid(absl::StrCat("unk_token ", Quote(unk), " is not in the vocabulary"));
  spec.unk_id = *id;
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const Json& root, TokenizerSpec& spec) {
  if (!formats::HasJson(root, "added_tokens")) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const Json* tokens, formats::GetArray(root, "added_tokens"));
  for (const Json& token : *tokens) {
    if (!token.is_object()) return Invalid("an entry of added_tokens is not an object");
    AddedToken added;
    RF_ASSIGN_OR_RETURN(const absl::string_view content, formats::GetString(token, "content"));
    RF_ASSIGN_OR_RETURN(const int64_t id, formats::GetInt(token, "id"));
    RF_RETURN_IF_ERROR(CheckId(id, content));
    added.content = std::string(content);
    added.id = static_cast<int32_t>(id);
    RF_ASSIGN_OR_RETURN(added.special, formats::GetBoolOr(token, "special", false));
    RF_ASSIGN_OR_RETURN(added.lstrip, formats::GetBoolOr(token, "lstrip", false));
    RF_ASSIGN_OR_RETURN(added.rstrip, formats::GetBoolOr(token, "rstrip", false));
    RF_ASSIGN_OR_RETURN(added.single_word, formats::GetBoolOr(token, "single_word", false));
    RF_ASSIGN_OR_RETURN(added.normalized, formats::GetBoolOr(token, "normalized", !added.special));
    spec.added.push_back(std::move(added));
  }
  return absl::OkStatus();
}

absl::string_view TypeOf(const Json& part) {
  const absl::StatusOr<absl::string_view> type = formats::GetString(part, "type");
  return type.ok() ? *type : absl::string_view("");
}

bool HasBool(const Json& part, absl::string_view key, bool fallback, bool wanted) {
  const absl::StatusOr<bool> value = formats::GetBoolOr(part, key, fallback);
  return value.ok() && *value == wanted;
}

bool IsByteLevel(const Json& part, bool use_regex) {
  return TypeOf(part) == "ByteLevel" && HasBool(part, "add_prefix_space", true, false) &&
         HasBool(part, "use_regex", true, use_regex);
}

bool IsSplitBy(const Json& part, absl::string_view pattern) {
  const auto regex = formats::GetString(part, "pattern/Regex");
  const auto behavior = formats::GetString(part, "behavior");
  return TypeOf(part) == "Split" && regex.ok() && *regex == pattern && behavior.ok() &&
         *behavior == "Isolated" && HasBool(part, "invert", false, false);
}

absl::Status ReadPreTokenizer(const Json& root, TokenizerSpec& spec) {
  constexpr absl::string_view kSupported =
      "the sequences of Llama 3 and Qwen2 (Split by their pattern, ByteLevel) and of SmolLM2 (Digits, "
      "ByteLevel)";
  const Json* part = FindJson(root, "pre_tokenizer");
  if (part == nullptr) return Unsupported("a tokenizer without pre_tokenizer", kSupported);
  const Json* parts = FindJson(*part, "pretokenizers");
  if (TypeOf(*part) != "Sequence" || parts == nullptr || !parts->is_array() || parts->size() != 2) {
    return Unsupported(absl::StrCat("pre_tokenizer ", Quote(TypeOf(*part))), kSupported);
  }
  const Json &first = (*parts)[0], &second = (*parts)[1];
  if (TypeOf(first) == "Digits" && HasBool(first, "individual_digits", false, true) &&
      IsByteLevel(second, true)) {
    spec.pre_tokenizer = PreTokenizerKind::kSmolLm;
    return absl::OkStatus();
  }
  for (PreTokenizerKind kind : {PreTokenizerKind::kLlama3, PreTokenizerKind::kQwen2}) {
    if (!IsSplitBy(first, HuggingFacePattern(kind)) || !IsByteLevel(second, false)) continue;
    spec.pre_tokenizer = kind;
    return absl::OkStatus();
  }
  return Unsupported(absl::StrCat("the pre_tokenizer sequence ", Quote(TypeOf(first)), ", ",
                                  Quote(TypeOf(second)), " with these settings"),
                     kSupported);
}

absl::Status ReadNormalizer(const Json& root, TokenizerSpec& spec) {
  const Json* normalizer = FindJson(root, "normalizer");
  if (normalizer == nullptr) return absl::OkStatus();
  if (TypeOf(*normalizer) != "NFC")
    return Unsupported(absl::StrCat("normalizer ", Quote(TypeOf(*normalizer))), "NFC");
  spec.normalizer = NormalizerKind::kNfc;
  return absl::OkStatus();
}

absl::Status CheckDecoder(const Json& root) {
  const Json* decoder = FindJson(root, "decoder");
  if (decoder != nullptr && TypeOf(*decoder) == "ByteLevel") return absl::OkStatus();
  return Unsupported(absl::StrCat("decoder ", Quote(decoder == nullptr ? "null" : TypeOf(*decoder))),
                     "ByteLevel");
}

// TemplateProcessing: special tokens before and after the text.
absl::Status ReadTemplate(const Json& processor, TokenizerSpec& spec) {
  RF_ASSIGN_OR_RETURN(const Json* single, formats::GetArray(processor, "single"));
  bool after_text = false;
  for (const Json& item : *single) {
    if (FindJson(item, "Sequence") != nullptr) {
      if (after_text)
        return Unsupported("a post_processor that repeats the text", "special tokens around it");
      after_text = true;
      continue;
    }
    RF_ASSIGN_OR_RETURN(const absl::string_view token, formats::GetString(item, "SpecialToken/id"));
    const std::optional<int32_t> id = FindId(spec, token);
    if (!id.has_value())
      return Invalid(absl::StrCat("post_processor: ", Quote(token), " is not in the vocabulary"));
    (after_text ? spec.suffix_ids : spec.prefix_ids).push_back(*id);
  }
  return after_text ? absl::OkStatus() : Invalid("post_processor: the template leaves the text out");
}

absl::Status ReadPostProcessor(const Json& processor, TokenizerSpec& spec) {
  const absl::string_view type = TypeOf(processor);
  if (type == "ByteLevel") return absl::OkStatus();  // moves offsets, not ids
  if (type == "TemplateProcessing") return ReadTemplate(processor, spec);
  const Json* parts = FindJson(processor, "processors");
  if (type != "Sequence" || parts == nullptr || !parts->is_array()) {
    return Unsupported(absl::StrCat("post_processor ", Quote(type)),
                       "ByteLevel, TemplateProcessing, a Sequence of them");
  }
  for (const Json& part : *parts) {
    if (TypeOf(part) == "Sequence")
      return Unsupported("a post_processor Sequence inside another", "one level");
    RF_RETURN_IF_ERROR(ReadPostProcessor(part, spec));
  }
  return absl::OkStatus();
}

// A token setting is its text or an object that holds it.
std::string TokenText(const Json& config, absl::string_view key) {
  const Json* value = FindJson(config, key);
  if (value != nullptr && value->is_object()) value = FindJson(*value, "content");
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

// One template, or a list of named ones.
absl::Status ReadChatTemplate(const Json& config, TokenizerSpec& spec) {
  const Json* value = FindJson(config, "chat_template");
  if (value == nullptr) return absl::OkStatus();
  if (value->is_string()) {
    spec.chat_template = value->get<std::string>();
    return absl::OkStatus();
  }
  if (!value->is_array()) return Invalid("tokenizer_config.json: chat_template is neither text nor a list");
  for (const Json& entry : *value) {
    if (TokenText(entry, "name") == "default") spec.chat_template = TokenText(entry, "template");
  }
  return absl::OkStatus();
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

absl::StatusOr<TokenizerSpec> SpecFromTokenizerJson(absl::string_view tokenizer_json) {
  RF_ASSIGN_OR_RETURN(const Json root, formats::ParseJson(tokenizer_json));
  if (!root.is_object()) return Invalid("it is not an object");
  TokenizerSpec spec;
  RF_RETURN_IF_ERROR(ReadModel(root, spec));
  RF_RETURN_IF_ERROR(ReadAddedTokens(root, spec));
  RF_RETURN_IF_ERROR(ReadPreTokenizer(root, spec));
  RF_RETURN_IF_ERROR(ReadNormalizer(root, spec));
  RF_RETURN_IF_ERROR(CheckDecoder(root));
  if (const Json* processor = FindJson(root, "post_processor"))
    RF_RETURN_IF_ERROR(ReadPostProcessor(*processor, spec));
  return spec;
}

absl::Status AddTokenizerConfig(absl::string_view tokenizer_config_json, TokenizerSpec& spec) {
  RF_ASSIGN_OR_RETURN(const Json config, formats::ParseJson(tokenizer_config_json));
  spec.bos_token = TokenText(config, "bos_token");
  if (const auto eos = FindId(spec, TokenText(config, "eos_token"))) spec.eos_ids.push_back(*eos);
  return ReadChatTemplate(config, spec);
}

absl::Status AddEosIds(absl::string_view config_json, TokenizerSpec& spec) {
  RF_ASSIGN_OR_RETURN(const Json config, formats::ParseJson(config_json));
  const Json* value = FindJson(config, "eos_token_id");
  if (value == nullptr) return absl::OkStatus();
  std::vector<int64_t> ids;
  if (value->is_array()) {
    RF_ASSIGN_OR_RETURN(ids, formats::GetInts(config, "eos_token_id"));
  } else {
    RF_ASSIGN_OR_RETURN(const int64_t id, formats::GetInt(config, "eos_token_id"));
    ids.push_back(id);
  }
  for (int64_t id : ids) {
    if (id >= 0 && id < kMaxId) spec.eos_ids.push_back(static_cast<int32_t>(id));
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenizerSpec> SpecFromHuggingFaceFolder(const std::string& folder) {
  RF_ASSIGN_OR_RETURN(const base::MappedFile tokenizer_json,
                      base::MappedFile::Open(folder + "/tokenizer.json"));
  RF_ASSIGN_OR_RETURN(TokenizerSpec spec, SpecFromTokenizerJson(tokenizer_json.bytes()));
  if (const std::string path = folder + "/tokenizer_config.json"; Exists(path)) {
    RF_ASSIGN_OR_RETURN(const std::string json, base::ReadFile(path));
    RF_RETURN_IF_ERROR(base::WithContext(AddTokenizerConfig(json, spec), path));
  }
  for (const char* name : {"/generation_config.json", "/config.json"}) {
    if (!Exists(folder + name)) continue;
    RF_ASSIGN_OR_RETURN(const std::string json, base::ReadFile(folder + name));
    RF_RETURN_IF_ERROR(base::WithContext(AddEosIds(json, spec), folder + name));
  }
  if (const std::string path = folder + "/chat_template.jinja"; Exists(path)) {
    RF_ASSIGN_OR_RETURN(spec.chat_template, base::ReadFile(path));
  }
  return spec;
}

}  // namespace ridgefill::tokenizer
