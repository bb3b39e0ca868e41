#include "engine/tokenizer/added_tokens.h"

#include "engine/base/status.h"
#include "engine/tokenizer/utf8.h"

namespace ridgefill::tokenizer {
namespace {

// Bytes of white space at the end, at the start.
size_t TrailingSpace(absl::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t start = LastUtf8Start(text.substr(0, end));
    if (!IsWhiteSpace(NextUtf8(text.substr(start)).code_point)) break;
    end = start;
  }
  return text.size() - end;
}

size_t LeadingSpace(absl::string_view text) {
  size_t begin = 0;
  while (begin < text.size()) {
    const Utf8Step step = NextUtf8(text.substr(begin));
    if (!IsWhiteSpace(step.code_point)) break;
    begin += step.length;
  }
  return begin;
}

}  // namespace

absl::StatusOr<AddedTokenSet> AddedTokenSet::Create(std::vector<AddedToken> tokens) {
  RF_ASSIGN_OR_RETURN(Regex word, Regex::Compile(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])"));
  AddedTokenSet set(std::move(tokens), std::move(word));
  set.Index();
  return set;
}

void AddedTokenSet::Index() {
  int32_t nodes = 1;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& content = tokens_[i].content;
    starts_[static_cast<uint8_t>(content[0])] = true;
    int32_t node = 0;
    for (char c : content) {
      const uint64_t edge = static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c);
      const auto [child, inserted] = children_.try_emplace(edge, nodes);
      if (inserted) ++nodes;
      node = child->second;
    }
    terminals_.emplace(node, static_cast<int32_t>(i));
  }
}

AddedTokenSet::Match AddedTokenSet::LongestAt(absl::string_view text, size_t offset) const {
  Match best;
  if (!starts_[static_cast<uint8_t>(text[offset])]) return best;
  int32_t node = 0;
  for (size_t i = offset; i < text.size(); ++i) {
    const auto child = children_.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(text[i]));
    if (child == children_.end()) break;
    node = child->second;
    if (const auto end = terminals_.find(node); end != terminals_.end()) {
      best = {&tokens_[end->second], i + 1 - offset};
    }
  }
  return best;
}

absl::StatusOr<bool> AddedTokenSet::StandsAlone(absl::string_view text, size_t begin, size_t end,
                                                Regex::Scratch& scratch) const {
  if (begin > 0) {
    RF_ASSIGN_OR_RETURN(const auto before,
                        word_.MatchAt(text.substr(0, begin), LastUtf8Start(text.substr(0, begin)), scratch));
    if (before.has_value()) return false;
  }
  if (end == text.size()) return true;
  RF_ASSIGN_OR_RETURN(const auto after, word_.MatchAt(text, end, scratch));
  return !after.has_value();
}

absl::StatusOr<std::vector<AddedTokenSet::Piece>> AddedTokenSet::Split(absl::string_view text,
                                                                       bool parse_special,
                                                                       Regex::Scratch& scratch) const {
  std::vector<Piece> pieces;
  size_t done = 0;  // text before it is in `pieces`
  for (size_t offset = 0; offset < text.size();) {
    const Match match = LongestAt(text, offset);
    if (match.token == nullptr) {
      ++offset;
      continue;
    }
    size_t begin = offset, end = offset + match.length;
    offset = end;  // also when refused below: Hugging Face does not look for a shorter token there
    if (match.token->special && !parse_special) continue;
    if (match.token->single_word) {
      RF_ASSIGN_OR_RETURN(const bool alone, StandsAlone(text, begin, end, scratch));
      if (!alone) continue;
    }
    // White space that the token before has swallowed is gone.
    if (match.token->lstrip)
      begin = begin > done ? begin - TrailingSpace(text.substr(done, begin - done)) : done;
    if (match.token->rstrip) end += LeadingSpace(text.substr(end));
    if (done < begin) pieces.push_back({-1, text.substr(done, begin - done)});
    pieces.push_back({match.token->id, {}});
    done = end;
  }
  if (done < text.size()) pieces.push_back({-1, text.substr(done)});
  return pieces;
}

}  // namespace ridgefill::tokenizer
