// The ceiling that kernel figures are read against: f32 multiply-adds in registers, nothing else.
#pragma once

namespace ridgefill::bench {

// GFLOP/s of `threads` threads together, over about `seconds`; 512-bit vectors where the machine has them.
double FmaPeak(int threads, double seconds);

}  // namespace ridgefill::bench
