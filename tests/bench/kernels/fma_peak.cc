#include "tests/bench/kernels/fma_peak.h"

#include <immintrin.h>

#include <chrono>
#include <thread>
#include <vector>

namespace ridgefill::bench {
namespace {

constexpr int kRounds = 20000;
constexpr int kChains = 12;  // more than latency times issue width

using Clock = std::chrono::steady_clock;

__attribute__((target("avx512f"))) float Rounds512() {
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  // Different starts, or the compiler would see one chain twelve times.
  __m512 c0 = _mm512_set1_ps(0.5f), c1 = _mm512_set1_ps(1.5f), c2 = _mm512_set1_ps(2.5f),
         c3 = _mm512_set1_ps(3.5f), c4 = _mm512_set1_ps(4.5f), c5 = _mm512_set1_ps(5.5f),
         c6 = _mm512_set1_ps(6.5f), c7 = _mm512_set1_ps(7.5f), c8 = _mm512_set1_ps(8.5f),
         c9 = _mm512_set1_ps(9.5f), c10 = _mm512_set1_ps(10.5f), c11 = _mm512_set1_ps(11.5f);
  for (int i = 0; i < kRounds; ++i) {
    c0 = _mm512_fmadd_ps(c0, a, b), c1 = _mm512_fmadd_ps(c1, a, b), c2 = _mm512_fmadd_ps(c2, a, b);
    c3 = _mm512_fmadd_ps(c3, a, b), c4 = _mm512_fmadd_ps(c4, a, b), c5 = _mm512_fmadd_ps(c5, a, b);
    c6 = _mm512_fmadd_ps(c6, a, b), c7 = _mm512_fmadd_ps(c7, a, b), c8 = _mm512_fmadd_ps(c8, a, b);
    c9 = _mm512_fmadd_ps(c9, a, b), c10 = _mm512_fmadd_ps(c10, a, b), c11 = _mm512_fmadd_ps(c11, a, b);
  }
  const __m512 s = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9 + c10 + c11;
  return s[0] + s[15];
}

__attribute__((target("avx2,fma"))) float Rounds256() {
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  // Different starts, or the compiler would see one chain twelve times.
  __m256 c0 = _mm256_set1_ps(0.5f), c1 = _mm256_set1_ps(1.5f), c2 = _mm256_set1_ps(2.5f),
         c3 = _mm256_set1_ps(3.5f), c4 = _mm256_set1_ps(4.5f), c5 = _mm256_set1_ps(5.5f),
         c6 = _mm256_set1_ps(6.5f), c7 = _mm256_set1_ps(7.5f), c8 = _mm256_set1_ps(8.5f),
         c9 = _mm256_set1_ps(9.5f), c10 = _mm256_set1_ps(10.5f), c11 = _mm256_set1_ps(11.5f);
  for (int i = 0; i < kRounds; ++i) {
    c0 = _mm256_fmadd_ps(c0, a, b), c1 = _mm256_fmadd_ps(c1, a, b), c2 = _mm256_fmadd_ps(c2, a, b);
    c3 = _mm256_fmadd_ps(c3, a, b), c4 = _mm256_fmadd_ps(c4, a, b), c5 = _mm256_fmadd_ps(c5, a, b);
    c6 = _mm256_fmadd_ps(c6, a, b), c7 = _mm256_fmadd_ps(c7, a, b), c8 = _mm256_fmadd_ps(c8, a, b);
    c9 = _mm256_fmadd_ps(c9, a, b), c10 = _mm256_fmadd_ps(c10, a, b), c11 = _mm256_fmadd_ps(c11, a, b);
  }
  const __m256 s = c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9 + c10 + c11;
  return s[0] + s[7];
}

double OneThread(double seconds) {
  const bool wide = __builtin_cpu_supports("avx512f");
  const auto begin = Clock::now();
  double flops = 0, elapsed = 0;
  volatile float keep = 0;
  while (elapsed < seconds) {
    keep = wide ? Rounds512() : Rounds256();
    flops += 2.0 * kRounds * kChains * (wide ? 16 : 8);
    elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  static_cast<void>(keep);
  return flops / elapsed / 1e9;
}

}  // namespace

double FmaPeak(int threads, double seconds) {
  std::vector<double> rate(threads);
  std::vector<std::thread> running;
  running.reserve(threads);
  for (int i = 0; i < threads; ++i) running.emplace_back([&, i] { rate[i] = OneThread(seconds); });
  double sum = 0;
  for (int i = 0; i < threads; ++i) {
    running[i].join();
    sum += rate[i];
  }
  return sum;
}

}  // namespace ridgefill::bench
