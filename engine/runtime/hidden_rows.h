// The residual rows of one prompt's exact set as they arrive, in any order; handed to the device in order of
// position. Owns the payloads and never copies them on the host. Not thread-safe.
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
  void Clear() { rows_.clear(), payloads_.clear(); }
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  // Rows [begin, begin + to.dim(0)) in order of position; the rows stay until the stream is synchronised.
  absl::Status Upload(kernels::Backend& backend, kernels::Stream& stream, int64_t begin,
                      const kernels::TensorView& to) const;

 private:
  struct Row {
    int32_t position = 0;
    int32_t payload = 0;  // index into payloads_
    int64_t row = 0;      // inside the payload
  };
  const int64_t row_bytes_;
  std::vector<std::string> payloads_;
  std::vector<Row> rows_;
};

}  // namespace ridgefill::runtime
