#include "engine/cache/block_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "engine/base/rng.h"
#include "engine/base/status.h"

namespace ridgefill::cache {
namespace {

TEST(BlockPoolTest, BlocksForRoundsUp) {
  EXPECT_EQ(BlocksFor(0), 0);
  EXPECT_EQ(BlocksFor(1), 1);
  EXPECT_EQ(BlocksFor(64), 1);
  EXPECT_EQ(BlocksFor(65), 2);
}

TEST(BlockPoolTest, ReserveExtendsATableInPlace) {
  BlockPool pool(4);
  BlockTable table;
  ASSERT_TRUE(pool.Reserve(10, table).ok());
  EXPECT_EQ(table.blocks, std::vector<int32_t>({0}));
  ASSERT_TRUE(pool.Reserve(64, table).ok());
  EXPECT_EQ(table.blocks.size(), 1u);
  ASSERT_TRUE(pool.Reserve(130, table).ok());
  EXPECT_EQ(table.blocks, std::vector<int32_t>({0, 1, 2}));
  EXPECT_EQ(table.tokens_capacity(), 192);
}

TEST(BlockPoolTest, RefusalIsAllOrNothingAndShowsTheArithmetic) {
  BlockPool pool(2);
  BlockTable table;
  ASSERT_TRUE(pool.Reserve(64, table).ok());
  const absl::Status status = pool.Reserve(64 * 4, table);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(base::GetErrorDetail(status)->reason, "NO_BLOCKS");
  EXPECT_EQ(status.message(), "256 tokens need 3 more KV blocks of 64 tokens; 1 of 2 are free");
  EXPECT_EQ(table.blocks.size(), 1u);
  EXPECT_EQ(pool.counts().free, 1);
}

TEST(BlockPoolTest, AnOldTableNoLongerOwnsItsBlocks) {
  BlockPool pool(1);
  BlockTable first;
  ASSERT_TRUE(pool.Reserve(1, first).ok());
  const BlockTable stale = first;
  pool.Release(first);
  EXPECT_TRUE(first.blocks.empty());
  EXPECT_FALSE(pool.Owns(stale));
  BlockTable second;
  ASSERT_TRUE(pool.Reserve(1, second).ok());
  EXPECT_EQ(second.blocks, stale.blocks);
  EXPECT_TRUE(pool.Owns(second));
  EXPECT_FALSE(pool.Owns(stale)) << "the generation tells the owners apart";
}

TEST(BlockPoolDeathTest, ReleasingTwiceDies) {
  BlockPool pool(2);
  BlockTable table;
  ASSERT_TRUE(pool.Reserve(1, table).ok());
  BlockTable copy = table;
  pool.Release(table);
  EXPECT_DEATH(pool.Release(copy), "check failed");
  BlockTable other;
  ASSERT_TRUE(pool.Reserve(1, other).ok());
  EXPECT_DEATH(pool.Release(copy), "check failed") << "also when another request has the block by now";
}

// Random reserve, extend and release against a model of sets.
TEST(BlockPoolTest, RandomUseAgreesWithAModel) {
  constexpr int64_t kTotal = 37;
  base::Rng rng(1);
  BlockPool pool(kTotal);
  std::vector<BlockTable> live;
  std::set<int32_t> used;
  for (int step = 0; step < 20000; ++step) {
    if (live.empty() || rng.NextBelow(2) == 0) {
      if (live.empty() || rng.NextBelow(3) != 0) live.emplace_back();
      BlockTable& table = live[rng.NextBelow(live.size())];
      const int64_t tokens = static_cast<int64_t>(rng.NextBelow(64 * 12));
      const int64_t before = static_cast<int64_t>(table.blocks.size());
      const int64_t missing = std::max<int64_t>(0, BlocksFor(tokens) - before);
      const bool fits = missing <= kTotal - static_cast<int64_t>(used.size());
      ASSERT_EQ(pool.Reserve(tokens, table).ok(), fits);
      ASSERT_EQ(static_cast<int64_t>(table.blocks.size()), before + (fits ? missing : 0));
      for (size_t i = before; i < table.blocks.size(); ++i) {
        ASSERT_TRUE(used.insert(table.blocks[i]).second) << "block " << table.blocks[i] << " given out twice";
      }
    } else {
      const size_t victim = rng.NextBelow(live.size());
      for (int32_t block : live[victim].blocks) used.erase(block);
      pool.Release(live[victim]);
      live.erase(live.begin() + static_cast<int64_t>(victim));
    }
    const BlockCounts counts = pool.counts();
    ASSERT_TRUE(counts.conserved());
    ASSERT_EQ(counts.used, static_cast<int64_t>(used.size()));
    for (const BlockTable& table : live) ASSERT_TRUE(pool.Owns(table));
  }
}

}  // namespace
}  // namespace ridgefill::cache
