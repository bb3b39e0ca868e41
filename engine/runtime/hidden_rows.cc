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

const HiddenRows::Row& HiddenRows::At(int32_t position) const {
  const auto it = std::lower_bound(rows_.begin(), rows_.end(), position,
                                   [](const Row& row, int32_t at) { return row.position < at; });
  RF_CHECK(it != rows_.end() && it->position == position);
  return *it;
}

absl::Status HiddenRows::Upload(kernels::Backend& backend, kernels::Stream& stream,
                                absl::Span<const int32_t> positions, const kernels::TensorView& to) const {
  const int64_t count = to.dim(0);
  RF_CHECK(static_cast<int64_t>(positions.size()) == count);
  // Rows that lie together in one payload go in one copy.
  for (int64_t done = 0; done < count;) {
    const Row& first = At(positions[done]);
    int64_t run = 1;
    for (; done + run < count; ++run) {
      const Row& next = At(positions[done + run]);
      if (next.payload != first.payload || next.row != first.row + run) break;
    }
    const absl::Span<const char> payload(payloads_[first.payload]);
    RF_RETURN_IF_ERROR(backend.CopyFromHost(stream, payload.subspan(first.row * row_bytes_, run * row_bytes_),
                                            to.Rows(done, run)));
    done += run;
  }
  return absl::OkStatus();
}

}  // namespace ridgefill::runtime
