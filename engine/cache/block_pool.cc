#include "engine/cache/block_pool.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status.h"

namespace ridgefill::cache {

int64_t BlocksFor(int64_t tokens) { return (tokens + kTokensPerBlock - 1) / kTokensPerBlock; }

BlockPool::BlockPool(int64_t total) {
  RF_CHECK(total >= 0 && total <= std::numeric_limits<int32_t>::max());
  blocks_.resize(total);
  free_.reserve(total);
  for (int64_t id = total - 1; id >= 0; --id) free_.push_back(static_cast<int32_t>(id));
}

absl::Status BlockPool::Reserve(int64_t tokens, BlockTable& table) {
  const int64_t have = static_cast<int64_t>(table.blocks.size());
  const int64_t missing = std::max<int64_t>(0, BlocksFor(tokens) - have);
  if (missing > static_cast<int64_t>(free_.size())) {
    return base::Error(absl::StatusCode::kResourceExhausted, "NO_BLOCKS",
                       absl::StrCat(tokens, " tokens need ", missing, " more KV blocks of ", kTokensPerBlock,
                                    " tokens; ", free_.size(), " of ", blocks_.size(), " are free"));
  }
  for (int64_t i = 0; i < missing; ++i) {
    const int32_t id = free_.back();
    free_.pop_back();
    RF_CHECK(!blocks_[id].used);
    blocks_[id].used = true;
    table.blocks.push_back(id);
    table.generations.push_back(blocks_[id].generation);
  }
  used_ += missing;
  return absl::OkStatus();
}

void BlockPool::Release(BlockTable& table) {
  RF_CHECK(table.blocks.size() == table.generations.size());
  for (size_t i = table.blocks.size(); i-- > 0;) {
    RF_CHECK(OwnsBlock(table, i));
    Block& block = blocks_[table.blocks[i]];
    block.used = false;
    ++block.generation;
    free_.push_back(table.blocks[i]);
  }
  used_ -= static_cast<int64_t>(table.blocks.size());
  table = {};
}

bool BlockPool::Owns(const BlockTable& table) const {
  if (table.blocks.size() != table.generations.size()) return false;
  for (size_t i = 0; i < table.blocks.size(); ++i) {
    if (!OwnsBlock(table, i)) return false;
  }
  return true;
}

bool BlockPool::OwnsBlock(const BlockTable& table, size_t i) const {
  const int32_t id = table.blocks[i];
  if (id < 0 || id >= static_cast<int64_t>(blocks_.size())) return false;
  return blocks_[id].used && blocks_[id].generation == table.generations[i];
}

BlockCounts BlockPool::counts() const {
  BlockCounts counts;
  counts.total = static_cast<int64_t>(blocks_.size());
  counts.free = static_cast<int64_t>(free_.size());
  counts.used = used_;
  return counts;
}

}  // namespace ridgefill::cache
