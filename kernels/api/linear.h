// Linear layers: y = x W^T + b over weights that a backend has packed for itself.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/api/tensor.h"

namespace ridgefill::kernels {

// Which work a row belongs to. Each phase has one weight form and one order of accumulation, so that a row's
// values never depend on what else ran in its batch (docs/architecture.md, "Batch invariance").
enum class Phase : uint8_t {
  kPrompt,  // prompt rows, below the split and in the late pass: many rows, compute-bound
  kDecode,  // generated rows: few rows, bandwidth-bound
};

// A weight as the loader hands it over. Called only while packing; may be called from several threads, rows
// in any order.
struct LinearSource {
  int64_t out_features = 0;
  int64_t in_features = 0;
  // Writes rows [begin, begin + count) of W [out_features, in_features] as f32.
  std::function<void(int64_t begin, int64_t count, float* out)> read_rows;
  absl::Span<const float> bias;  // [out_features] or empty
  bool for_prompt = true;        // pack the form of Phase::kPrompt
  bool for_decode = true;        // pack the form of Phase::kDecode
};
absl::Status Check(const LinearSource& source);

// A packed weight in a backend's private form: at least what bf16 keeps of it; where activations are f32 and
// no weight is beyond 65,504, at least what f16 keeps. Immutable, thread-safe. Must not outlive its backend.
class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  virtual int64_t out_features() const = 0;
  virtual int64_t in_features() const = 0;
  virtual bool has(Phase phase) const = 0;
  // Bytes held, all forms together.
  virtual int64_t bytes() const = 0;
};

struct LinearArgs {
  TensorView x;                          // [rows, in] in the backend's activation dtype
  const PackedLinear* weight = nullptr;  // [out, in]
  TensorView y;                          // [rows, out] activation dtype or f32
  bool accumulate = false;               // y += x W^T + b; y must then be f32 (the residual stream)
  Phase phase = Phase::kPrompt;
};
// Contract: accumulation in f32 (f64 in the reference) over ascending `in`; y[r] depends on x[r] and the
// weight alone.
absl::Status Check(const LinearArgs& args);

// C = X^T Y: one block of the sums of a least-squares fit (at most 4,096 rows, so that f32 accumulation loses
// nothing that matters).
struct GramArgs {
  TensorView x;  // f32 [rows, m]
  TensorView y;  // f32 [rows, n]
  TensorView c;  // f32 [m, n], overwritten
};
absl::Status Check(const GramArgs& args);

}  // namespace ridgefill::kernels
