// Decode side of one transfer: checks each frame that arrived, then writes its K and V into the request's
// blocks or keeps its hidden rows. Not thread-safe: owned by the decode engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/block_pool.h"
#include "engine/runtime/decode_pass.h"
#include "engine/runtime/hidden_rows.h"
#include "engine/runtime/kv_stream.h"
#include "engine/runtime/transfer_checker.h"

namespace ridgefill::runtime {

class TransferIntake {
 public:
  TransferIntake(std::unique_ptr<KvTransfer> transfer, const TransferChecker::Expectation& expected)
      : transfer_(std::move(transfer)), checker_(expected), hidden_(expected.hidden) {}

  // Takes at most `max_frames` frames that have arrived; returns how many. Errors are TransferChecker's. Once
  // sealed() everything is in place and nothing more is taken.
  absl::StatusOr<int> Poll(DecodePass& pass, const cache::BlockTable& blocks, int max_frames);

  bool sealed() const { return checker_.sealed(); }
  const PlanBody& plan() const { return checker_.plan(); }  // once sealed
  const HiddenRows& hidden() const { return hidden_; }      // in order once sealed
  // What the lower layers' attention gives, where the decision asks for it and the fill is done here.
  const std::vector<float>& scores() const { return scores_; }
  // Frees hidden rows and scores. The transfer itself stays until its request ends: closing it could look
  // like a cancel to a peer that has not yet finished its side.
  void DropRows() { hidden_.Clear(), scores_ = {}; }
  int64_t bytes() const { return bytes_; }

 private:
  absl::Status Take(DecodePass& pass, const cache::BlockTable& blocks, KvFrame& frame);

  std::unique_ptr<KvTransfer> transfer_;
  TransferChecker checker_;
  HiddenRows hidden_;
  std::vector<float> scores_;
  int64_t bytes_ = 0;
};

}  // namespace ridgefill::runtime
