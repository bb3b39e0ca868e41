// Finds added tokens in text before the merges see it, as Hugging Face `tokenizers` does: leftmost, then
// longest. Immutable and thread-safe after creation.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/spec.h"

namespace ridgefill::tokenizer {

class AddedTokenSet {
 public:
  // Contents must be distinct and not empty.
  static absl::StatusOr<AddedTokenSet> Create(std::vector<AddedToken> tokens);

  struct Piece {
    int32_t id = -1;         // -1: plain text
    absl::string_view text;  // of plain text only
  };
  // Cuts valid UTF-8 `text`. Without `parse_special` control tokens stay plain text.
  absl::StatusOr<std::vector<Piece>> Split(absl::string_view text, bool parse_special,
                                           Regex::Scratch& scratch) const;

 private:
  struct Match {
    const AddedToken* token = nullptr;
    size_t length = 0;
  };
  AddedTokenSet(std::vector<AddedToken> tokens, Regex word)
      : tokens_(std::move(tokens)), word_(std::move(word)) {}
  void Index();
  Match LongestAt(absl::string_view text, size_t offset) const;
  absl::StatusOr<bool> StandsAlone(absl::string_view text, size_t begin, size_t end,
                                   Regex::Scratch& scratch) const;

  std::vector<AddedToken> tokens_;
  Regex word_;                                       // one word character
  std::array<bool, 256> starts_{};                   // first bytes of contents
  absl::flat_hash_map<uint64_t, int32_t> children_;  // trie: node << 8 | byte -> node; 0 is the root
  absl::flat_hash_map<int32_t, int32_t> terminals_;  // node -> index in tokens_
};

}  // namespace ridgefill::tokenizer
