// The residual rows of one prompt as they arrive, in any order: those of the exact set, or all of them;
// handed to the device by their positions. Owns the payloads and never copies them on the host. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/api/backend.h"

namespace ridgefill::runtime {

class HiddenRows {
 public:
  explicit HiddenRows(int64_t width) : row_bytes_(width * static_cast<int64_t>(sizeof(float))) {}

  // payload: f32 [positions, width]. Every position at most once over all calls.
  void Add(absl::Span<const int32_t> positions, std::string payload);
  // No more rows will come: puts them in order.
  void Sort();
  // Their memory goes too: an answer may take long after its prompt.
  void Clear() { rows_ = {}, payloads_ = {}; }
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  // The rows of some positions, all of which have come; they stay until the stream is synchronised.
  absl::Status Upload(kernels::Backend& backend, kernels::Stream& stream, absl::Span<const int32_t> positions,
                      const kernels::TensorView& to) const;

 private:
  struct Row {
    int32_t position = 0;
    int32_t payload = 0;  // index into payloads_
    int64_t row = 0;      // inside the payload
  };
  const Row& At(int32_t position) const;

  const int64_t row_bytes_;
  std::vector<std::string> payloads_;
  std::vector<Row> rows_;
};

}  // namespace ridgefill::runtime
