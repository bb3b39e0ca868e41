// Holds a transfer against the contract of kv_frame.h. Frames come from another process: nothing of a frame
// may be used before Accept has passed it.
//
// Not thread-safe. Errors are DATA_LOSS with a reason: FRAME_SEQUENCE, FRAME_CHECKSUM, FRAME_LAYERS,
// FRAME_TOKENS, FRAME_SIZE, FRAME_POSITIONS, FRAME_SCORES, FRAME_ORDER, PLAN_MISMATCH, TRANSFER_INCOMPLETE,
// SEAL_MISMATCH, TRANSFER_NOT_SEALED; or UNAVAILABLE with PREFILL_LOST for a broken stream. After an error
// the object is done.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/runtime/kv_frame.h"

namespace ridgefill::runtime {

class TransferChecker {
 public:
  struct Expectation {
    ridge::FillDecision decision;  // passed CheckDecision, not local
    int64_t tokens = 0;
    int layers = 0;
    int64_t hidden = 0;          // width of a residual row
    int64_t kv_token_bytes = 0;  // K and V of one token of one layer
  };
  explicit TransferChecker(const Expectation& expected);

  absl::Status Accept(const KvFrame& frame);
  // How the stream ended, once all its frames were accepted. OK only after Sealed.
  absl::Status AcceptEnd(const absl::Status& end) const;

  bool sealed() const { return state_ == State::kSealed; }
  const PlanBody& plan() const { return plan_; }  // once sealed

 private:
  enum class State { kRows, kPlanned, kSealed };

  absl::Status AcceptBody(const KvFrame& frame, const KvBody& kv);
  absl::Status AcceptBody(const KvFrame& frame, const HiddenBody& hidden);
  absl::Status AcceptBody(const KvFrame& frame, const ScoresBody& scores);
  absl::Status AcceptBody(const KvFrame& frame, const PlanBody& plan);
  absl::Status AcceptBody(const KvFrame& frame, const SealedBody& sealed);
  absl::Status CheckPlanShape(const ridge::FillPlan& plan) const;
  absl::Status CheckPlanRows(const ridge::FillPlan& plan) const;
  absl::Status CheckCoverage(const ridge::FillPlan& plan) const;
  // Layer `layer` gets the K and V of tokens [0, KvEnd(layer)).
  int64_t KvEnd(int layer) const;
  bool scores_due() const;
  std::vector<int32_t> HiddenDue(const ridge::FillPlan& plan) const;

  const Expectation expected_;
  int late_begin_;  // layers from here on carry bulk rows only
  int64_t tail_begin_;
  std::vector<int64_t> next_token_;   // [layers]: tokens [0, next_token_) of the layer have arrived
  std::vector<bool> hidden_arrived_;  // [tokens]
  int64_t hidden_count_ = 0;
  bool scores_arrived_ = false;
  State state_ = State::kRows;
  uint64_t frames_ = 0;
  uint32_t digest_ = 0;
  PlanBody plan_;
};

// Crc of the frames so far, one more frame's checksum added: SealedBody::digest.
uint32_t ExtendDigest(uint32_t digest, uint32_t frame_crc32c);

}  // namespace ridgefill::runtime
