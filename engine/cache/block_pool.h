// Hands out KV cache blocks: ids only, never bytes. free + used + cached == total always.
//
// Not thread-safe: owned by an engine's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ridgefill::cache {

inline constexpr int64_t kTokensPerBlock =
    64;  // kernels::kBlockTokens; engine/runtime asserts that they agree

// Blocks that hold `tokens`.
int64_t BlocksFor(int64_t tokens);

// Blocks of one sequence in token order. Each id carries the generation under which it was reserved, so that
// a write meant for an earlier owner is caught.
struct BlockTable {
  std::vector<int32_t> blocks;
  std::vector<uint32_t> generations;
  int64_t tokens_capacity() const { return static_cast<int64_t>(blocks.size()) * kTokensPerBlock; }
};

struct BlockCounts {
  int64_t total = 0, free = 0, used = 0, cached = 0;
  bool conserved() const { return free >= 0 && used >= 0 && cached >= 0 && free + used + cached == total; }
};

class BlockPool {
 public:
  explicit BlockPool(int64_t total);
  // Appends blocks until the table holds `tokens`; all or nothing. RESOURCE_EXHAUSTED (NO_BLOCKS) with the
  // arithmetic.
  absl::Status Reserve(int64_t tokens, BlockTable& table);
  // Returns all blocks of the table and clears it. Releasing a block twice is a bug (RF_CHECK).
  void Release(BlockTable& table);
  // True while every block of the table still belongs to it.
  bool Owns(const BlockTable& table) const;
  BlockCounts counts() const;

 private:
  struct Block {
    uint32_t generation = 0;  // times it was released
    bool used = false;
  };
  bool OwnsBlock(const BlockTable& table, size_t i) const;

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // stack: the lowest ids come out first at the start
  int64_t used_ = 0;           // counted apart from free_, so that counts() can catch a lost block
};

}  // namespace ridgefill::cache
