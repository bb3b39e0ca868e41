#include "engine/tokenizer/pre_tokenizer.h"

#include "absl/strings/str_replace.h"
#include "engine/base/status.h"

namespace ridgefill::tokenizer {
namespace {

constexpr absl::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kDigitsPattern = R"(\p{N}|\P{N}+)";

std::vector<absl::string_view> Patterns(PreTokenizerKind kind) {
  switch (kind) {
    case PreTokenizerKind::kLlama3:
      return {kLlama3Pattern};
    case PreTokenizerKind::kQwen2:
      return {kQwen2Pattern};
    case PreTokenizerKind::kSmolLm:
      return {kDigitsPattern, kGpt2Pattern};
  }
  return {};
}

// PCRE2 counts U+180E as white space, Oniguruma (which Hugging Face uses) follows the Unicode property.
std::string ForPcre2(absl::string_view pattern) {
  return absl::StrReplaceAll(pattern, {{R"(\s)", R"(\p{White_Space})"}, {R"(\S)", R"(\P{White_Space})"}});
}

}  // namespace

absl::string_view HuggingFacePattern(PreTokenizerKind kind) {
  switch (kind) {
    case PreTokenizerKind::kLlama3:
      return kLlama3Pattern;
    case PreTokenizerKind::kQwen2:
      return kQwen2Pattern;
    case PreTokenizerKind::kSmolLm:
      return "";
  }
  return "";
}

absl::string_view GgufPreName(PreTokenizerKind kind) {
  switch (kind) {
    case PreTokenizerKind::kLlama3:
      return "llama-bpe";
    case PreTokenizerKind::kQwen2:
      return "qwen2";
    case PreTokenizerKind::kSmolLm:
      return "smollm";
  }
  return "";
}

absl::StatusOr<PreTokenizer> PreTokenizer::Create(PreTokenizerKind kind) {
  std::vector<Regex> stages;
  for (absl::string_view pattern : Patterns(kind)) {
    RF_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(ForPcre2(pattern)));
    stages.push_back(std::move(regex));
  }
  return PreTokenizer(std::move(stages));
}

absl::Status PreTokenizer::Split(absl::string_view text, Regex::Scratch& scratch,
                                 absl::FunctionRef<void(absl::string_view)> word) const {
  return SplitFrom(0, text, scratch, word);
}

absl::Status PreTokenizer::SplitFrom(size_t stage, absl::string_view text, Regex::Scratch& scratch,
                                     absl::FunctionRef<void(absl::string_view)> word) const {
  for (size_t offset = 0; offset < text.size();) {
    RF_ASSIGN_OR_RETURN(const std::optional<size_t> length, stages_[stage].MatchAt(text, offset, scratch));
    // Every pattern above has an alternative for every character.
    if (!length.has_value() || *length == 0) {
      return base::Error(absl::StatusCode::kInternal, "REGEX_FAILED",
                         "a pre-tokenizer pattern matched nothing");
    }
    const absl::string_view piece = text.substr(offset, *length);
    if (stage + 1 == stages_.size()) {
      word(piece);
    } else {
      RF_RETURN_IF_ERROR(SplitFrom(stage + 1, piece, scratch, word));
    }
    offset += *length;
  }
  return absl::OkStatus();
}

}  // namespace ridgefill::tokenizer
