#include "engine/runtime/hidden_rows.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/status.h"

namespace ridgefill::runtime {

void HiddenRows::Add(absl::Span<const int32_t> positions, std::string payload) {
  RF_CHECK(static_cast<int64_t>(payload.size()) == static_cast<int64_t>(positions.size()) * row_bytes_);
  const int32_t index = static_cast<int32_t>(payloads_.size());
  for (size_t i = 0; i < positions.size(); ++i)
    rows_.push_back({positions[i], index, static_cast<int64_t>(i)});
  payloads_.push_back(std::move(payload));
}

void HiddenRows::Sort() {
  std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return a.position < b.position; });
}

absl::Status HiddenRows::Upload(kernels::Backend& backend, kernels::Stream& stream, int64_t begin,
                                const kernels::TensorView& to) const {
  const int64_t count = to.dim(0);
  RF_CHECK(begin >= 0 && begin + count <= size());
  // Rows that lie together in one payload go in one copy.
  for (int64_t done = 0; done < count;) {
    const Row& first = rows_[begin + done];
    int64_t run = 1;
    while (done + run < count && rows_[begin + done + run].payload == first.payload &&
           rows_[begin + done + run].row == first.row + run) {
      ++run;
    }
    const absl::Span<const char> payload(payloads_[first.payload]);
    RF_RETURN_IF_ERROR(backend.CopyFromHost(stream, payload.subspan(first.row * row_bytes_, run * row_bytes_),
                                            to.Rows(done, run)));
    done += run;
  }
  return absl::OkStatus();
}

}  // namespace ridgefill::runtime
