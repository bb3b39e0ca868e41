// RoPE, cache writes and attention of the reference backend.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/reference_backend.h"

namespace ridgefill::kernels::reference {
namespace {

// Turns one head [head_dim] in place: pair i is elements i and i + head_dim / 2.
void Turn(const RopeSpec& rope, int32_t position, float* head) {
  const int half = rope.head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = position * rope.inverse_frequencies[i];
    const double a = head[i], b = head[i + half];
    head[i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
    head[i + half] = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
  }
}

double Dot(const float* q, const float* k, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(q[i]) * k[i];
  return sum;
}

}  // namespace

absl::Status ReferenceBackend::DoRopeWrite(Stream&, const RopeWriteArgs& a) {
  const auto& batch = static_cast<const ReferenceBatch&>(*a.batch);
  auto& cache = static_cast<ReferenceKvCache&>(*a.cache);
  const int head_dim = a.rope->head_dim, kv_heads = cache.spec().kv_heads;
  const int64_t q_heads = a.q.rank == 0 ? 0 : a.q.dim(1) / head_dim;
  std::vector<float> head(head_dim);
  for (int64_t r = 0; r < batch.rows(); ++r) {
    const int32_t position = batch.position(r);
    const int32_t block = batch.block(r, position);
    for (int64_t h = 0; h < q_heads; ++h) {
      Turn(*a.rope, position, a.q.as<float>() + (r * q_heads + h) * head_dim);
    }
    for (int h = 0; h < kv_heads; ++h) {
      const int64_t k_at = r * a.kv.dim(1) + h * head_dim, v_at = k_at + cache.token_elements();
      for (int i = 0; i < head_dim; ++i) head[i] = Load(a.kv, k_at + i);
      Turn(*a.rope, position, head.data());
      float* k = cache.k(a.layer, block, position % kBlockTokens) + h * head_dim;
      float* v = cache.v(a.layer, block, position % kBlockTokens) + h * head_dim;
      for (int i = 0; i < head_dim; ++i) k[i] = cache.Put(head[i]);
      for (int i = 0; i < head_dim; ++i) v[i] = cache.Put(Load(a.kv, v_at + i));
    }
  }
  return absl::OkStatus();
}

absl::Status ReferenceBackend::DoAttention(Stream&, const AttentionArgs& a) {
  const auto& batch = static_cast<const ReferenceBatch&>(*a.batch);
  const auto& cache = static_cast<const ReferenceKvCache&>(*a.cache);
  const int head_dim = cache.spec().head_dim;
  const int64_t q_heads = a.q.dim(1) / head_dim, group = q_heads / cache.spec().kv_heads;
  std::vector<double> score, sum(head_dim);
  for (int64_t r = 0; r < batch.rows(); ++r) {
    const int64_t tokens = batch.position(r) + 1;
    score.resize(tokens);
    for (int64_t h = 0; h < q_heads; ++h) {
      const int64_t at = (r * q_heads + h) * head_dim, kv_offset = h / group * head_dim;
      for (int64_t t = 0; t < tokens; ++t) {
        const float* k = cache.k(a.layer, batch.block(r, t), t % kBlockTokens) + kv_offset;
        score[t] = a.scale * Dot(a.q.as<float>() + at, k, head_dim);
      }
      const double top = *std::max_element(score.begin(), score.end());
      double total = 0;
      std::fill(sum.begin(), sum.end(), 0.0);
      for (int64_t t = 0; t < tokens; ++t) {
        const double weight = std::exp(score[t] - top);
        const float* v = cache.v(a.layer, batch.block(r, t), t % kBlockTokens) + kv_offset;
        total += weight;
        for (int i = 0; i < head_dim; ++i) sum[i] += weight * v[i];
      }
      for (int i = 0; i < head_dim; ++i) Store(a.out, at + i, static_cast<float>(sum[i] / total));
    }
  }
  return absl::OkStatus();
}

absl::Status ReferenceBackend::DoAttentionMass(Stream&, const AttentionMassArgs& a) {
  const auto& batch = static_cast<const ReferenceBatch&>(*a.batch);
  const auto& cache = static_cast<const ReferenceKvCache&>(*a.cache);
  const int head_dim = cache.spec().head_dim;
  const int64_t q_heads = a.q.dim(1) / head_dim, group = q_heads / cache.spec().kv_heads;
  std::vector<double> score;
  for (int64_t r = 0; r < batch.rows(); ++r) {
    const int64_t tokens = batch.position(r) + 1;
    score.resize(tokens);
    for (int64_t h = 0; h < q_heads; ++h) {
      const float* q = a.q.as<float>() + (r * q_heads + h) * head_dim;
      for (int64_t t = 0; t < tokens; ++t) {
        const float* k = cache.k(a.layer, batch.block(r, t), t % kBlockTokens) + h / group * head_dim;
        score[t] = a.scale * Dot(q, k, head_dim);
      }
      const double top = *std::max_element(score.begin(), score.end());
      double total = 0;
      for (double s : score) total += std::exp(s - top);
      float* mass = a.mass.as<float>() + h / group * a.mass.dim(1);
      for (int64_t t = 0; t < tokens - a.min_distance; ++t) {
        const double p = std::exp(score[t] - top) / total;
        mass[t] = static_cast<float>(a.reduction == MassReduction::kSum ? mass[t] + p
                                                                        : std::max<double>(mass[t], p));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace ridgefill::kernels::reference
