// The merges of byte-level BPE. Immutable and thread-safe after creation.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/spec.h"

namespace ridgefill::tokenizer {

class Bpe {
 public:
  // `token_bytes`: id -> raw bytes, for `ignore_merges`; borrowed for the object's life. TOKENIZER_INVALID
  // for a merge of or into a string that is not in the vocabulary.
  static absl::StatusOr<Bpe> Create(const TokenizerSpec& spec, const std::vector<std::string>& token_bytes);

  // Working memory of one thread, kept from word to word.
  struct Scratch {
    struct Symbol {
      int32_t id;
      int32_t previous, next;  // index, -1 at an end
      bool alive;
    };
    struct Candidate {  // two neighbours that would merge
      int32_t rank;
      int32_t position;  // of the left one
      int32_t left, right, merged;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    size_t pushes = 0;  // candidates ever queued: the work done, counted for tests
  };

  // Appends the ids of one word. A word of n bytes queues under 3n candidates, so it takes O(n log n). A byte
  // that the vocabulary lacks becomes the unknown token, or nothing where the model has none: as Hugging Face
  // does.
  void EncodeWord(absl::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    int32_t rank, merged;
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  Bpe() = default;
  void QueuePair(int32_t left_index, Scratch& scratch) const;
  void Load(absl::string_view word, Scratch& scratch) const;

  std::array<int32_t, 256> byte_ids_{};  // -1: the vocabulary lacks this byte
  int32_t unk_id_ = -1;
  absl::flat_hash_map<uint64_t, Merge> merges_;
  absl::flat_hash_map<absl::string_view, int32_t> words_;  // raw bytes -> id; only with ignore_merges
};

}  // namespace ridgefill::tokenizer
