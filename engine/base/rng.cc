#include "engine/base/rng.h"

#include <random>

#include "engine/base/check.h"

namespace ridgefill::base {

uint64_t Rng::NextU64() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double Rng::NextDouble() { return static_cast<double>(NextU64() >> 11) * 0x1.0p-53; }

uint64_t Rng::NextBelow(uint64_t bound) {
  RF_CHECK(bound > 0);
  // Values below 2^64 mod bound would be drawn once more often than the rest.
  const uint64_t threshold = -bound % bound;
  for (;;) {
    const uint64_t value = NextU64();
    if (value >= threshold) return value % bound;
  }
}

uint64_t EntropySeed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) ^ device();
}

}  // namespace ridgefill::base
