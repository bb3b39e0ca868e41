#include "engine/runtime/transfer_intake.h"

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/status.h"

namespace ridgefill::runtime {

absl::StatusOr<int> TransferIntake::Poll(DecodePass& pass, const cache::BlockTable& blocks, int max_frames) {
  std::vector<KvFrame> taken;  // their payloads must outlive the copies
  taken.reserve(max_frames);
  absl::Status status;
  while (status.ok() && !sealed() && static_cast<int>(taken.size()) < max_frames) {
    std::optional<KvFrame> frame = transfer_->TryNext();
    if (!frame.has_value()) {
      const std::optional<absl::Status> end = transfer_->Ended();
      if (end.has_value()) status = checker_.AcceptEnd(*end);
      break;
    }
    taken.push_back(*std::move(frame));
    status = Take(pass, blocks, taken.back());
  }
  status.Update(pass.Synchronize());
  if (!status.ok()) return status;
  if (sealed()) hidden_.Sort();
  return static_cast<int>(taken.size());
}

absl::Status TransferIntake::Take(DecodePass& pass, const cache::BlockTable& blocks, KvFrame& frame) {
  RF_RETURN_IF_ERROR(checker_.Accept(frame));
  bytes_ += static_cast<int64_t>(frame.payload.size());
  if (const auto* kv = std::get_if<KvBody>(&frame.body))
    return pass.WriteKv(*kv, frame.payload, blocks.blocks);
  if (const auto* hidden = std::get_if<HiddenBody>(&frame.body)) {
    hidden_.Add(hidden->positions, std::move(frame.payload));
  } else if (const auto* scores = std::get_if<ScoresBody>(&frame.body)) {
    scores_.resize(scores->tokens);
    std::memcpy(scores_.data(), frame.payload.data(), frame.payload.size());
  }
  return absl::OkStatus();
}

}  // namespace ridgefill::runtime
