// A KV cache with known contents and the batches that attention tests run over it.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/backend_harness.h"

namespace ridgefill::kernels {

struct AttentionShape {
  int kv_heads, group, head_dim;
};

// One sequence: `tokens` of K and V in blocks scattered over the cache.
struct Sequence {
  int64_t tokens = 0;
  std::vector<int32_t> blocks;
  std::vector<float> k, v;  // [tokens, kv_heads * head_dim]
};

class AttentionBackendTest : public BackendTest {
 protected:
  static constexpr int64_t kBlocks = 64;

  void NewCache(const AttentionShape& shape, int layers = 2) {
    shape_ = shape;
    auto cache = backend_->NewKvCache({layers, kBlocks, shape.kv_heads, shape.head_dim});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
    next_block_ = 0;
    std::vector<int32_t> all(kBlocks);
    for (int64_t i = 0; i < kBlocks; ++i) all[i] = static_cast<int32_t>(i);
    // Blocks start full of NaN: what was never written must never be felt.
    std::string nan(kBlocks * kBlockTokens * cache_->spec().token_bytes(), '\xff');
    for (int layer = 0; layer < layers; ++layer) {
      ASSERT_TRUE(backend_->WriteKv(*stream_, *cache_, {layer, all, 0, kBlocks * kBlockTokens}, nan).ok());
    }
  }

  int64_t token_width() const { return static_cast<int64_t>(shape_.kv_heads) * shape_.head_dim; }
  int64_t query_width() const { return token_width() * shape_.group; }

  // Random K and V for a new sequence, written into layer 1.
  Sequence NewSequence(int64_t tokens, Values& values) {
    Sequence seq;
    seq.tokens = tokens;
    for (int64_t b = 0; b * kBlockTokens < tokens; ++b) {
      seq.blocks.push_back(static_cast<int32_t>(next_block_++ * 37 % kBlocks));  // 37 is coprime to kBlocks
    }
    seq.k = values.Many(tokens * token_width(), 2.0);
    seq.v = values.Many(tokens * token_width(), 2.0);
    std::string bytes(2 * tokens * token_width() * 2, '\0');
    for (size_t i = 0; i < seq.k.size() + seq.v.size(); ++i) {
      const uint16_t half = base::F32ToBF16(i < seq.k.size() ? seq.k[i] : seq.v[i - seq.k.size()]);
      std::memcpy(&bytes[2 * i], &half, 2);
    }
    EXPECT_TRUE(backend_->WriteKv(*stream_, *cache_, {1, seq.blocks, 0, tokens}, bytes).ok());
    return seq;
  }

  // Runs attention of one batch; `q` holds its rows in order.
  std::string Attend(const std::vector<std::pair<const Sequence*, std::vector<int32_t>>>& parts,
                     const std::vector<float>& q, Phase phase = Phase::kPrompt) {
    std::vector<int32_t> positions;
    std::vector<SequenceRows> sequences;
    for (const auto& [seq, rows] : parts) {
      sequences.push_back(
          {static_cast<int64_t>(positions.size()), static_cast<int64_t>(rows.size()), seq->blocks});
      positions.insert(positions.end(), rows.begin(), rows.end());
    }
    auto batch = backend_->NewBatch({positions, sequences, phase}, nullptr);
    EXPECT_TRUE(batch.ok()) << batch.status();
    const int64_t rows = static_cast<int64_t>(positions.size());
    Tensor tq = Upload(act_, {rows, query_width()}, q), out = Empty(act_, {rows, query_width()});
    AttentionArgs args{batch->get(), tq.view(), cache_.get(), 1, scale(), out.view()};
    const absl::Status status = backend_->Attention(*stream_, args);
    EXPECT_TRUE(status.ok()) << status;
    return Bytes(out.view());
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
  int64_t row_bytes() const { return query_width() * ByteSize(act_); }

  AttentionShape shape_;
  std::unique_ptr<KvCache> cache_;
  int64_t next_block_ = 0;
};

}  // namespace ridgefill::kernels
