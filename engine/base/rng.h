// Random numbers as a parameter: a small counter-based generator whose stream is a pure function of its seed,
// the same on every platform and library version (std distributions are not).
#pragma once

#include <cstdint>

namespace ridgefill::base {

// SplitMix64. Not thread-safe, cheap to copy.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t NextU64();
  // Uniform in [0, 1), 53 bits.
  double NextDouble();
  // Uniform in [0, bound); bound > 0. No modulo bias.
  uint64_t NextBelow(uint64_t bound);

 private:
  uint64_t state_;
};

// A seed from the operating system, for requests that bring none.
uint64_t EntropySeed();

}  // namespace ridgefill::base
