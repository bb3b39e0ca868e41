#include "engine/runtime/transfer_checker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/crc32c.h"
#include "engine/base/status.h"
#include "engine/ridge/selection.h"
#include "engine/runtime/decision.h"

namespace ridgefill::runtime {
namespace {

absl::Status Loss(absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kDataLoss, reason, absl::StrCat("KV transfer: ", message));
}

// Ascending, without duplicates, inside [0, end).
bool AscendsBelow(const std::vector<int32_t>& rows, int64_t end) {
  int64_t previous = -1;
  for (int32_t row : rows) {
    if (row <= previous || row >= end) return false;
    previous = row;
  }
  return true;
}

}  // namespace

uint32_t ExtendDigest(uint32_t digest, uint32_t frame_crc32c) {
  char bytes[4];
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>(frame_crc32c >> (8 * i) & 0xff);
  return base::Crc32c(absl::string_view(bytes, 4), digest);
}

TransferChecker::TransferChecker(const Expectation& expected) : expected_(expected) {
  const WorkSplit work = SplitWork(expected.decision, expected.layers, expected.tokens);
  late_begin_ = work.late_begin;
  tail_begin_ = work.tail_begin;
  next_token_.resize(expected.layers, 0);
  hidden_arrived_.resize(expected.tokens, false);
}

int64_t TransferChecker::KvEnd(int layer) const {
  if (layer < late_begin_) return expected_.tokens;
  return FillsOnDecode(expected_.decision) ? 0 : tail_begin_;
}

bool TransferChecker::scores_due() const {
  return FillsOnDecode(expected_.decision) && tail_begin_ > 0 &&
         ridge::NeedsAttentionScores(expected_.decision);
}

std::vector<int32_t> TransferChecker::HiddenDue(const ridge::FillPlan& plan) const {
  if (late_begin_ == expected_.layers) return {static_cast<int32_t>(expected_.tokens - 1)};
  if (!FillsOnDecode(expected_.decision)) return plan.ExactRows();
  return ridge::FillPlan{expected_.tokens, /*tail_begin=*/0}.ExactRows();  // all
}

absl::Status TransferChecker::Accept(const KvFrame& frame) {
  if (state_ == State::kSealed) return Loss("FRAME_ORDER", "a frame after Sealed");
  if (frame.sequence != frames_) {
    return Loss("FRAME_SEQUENCE", absl::StrCat("frame ", frame.sequence, " where ", frames_, " was due"));
  }
  if (base::Crc32c(frame.payload) != frame.crc32c) {
    return Loss("FRAME_CHECKSUM", absl::StrCat("frame ", frame.sequence, " does not match its crc32c"));
  }
  RF_RETURN_IF_ERROR(std::visit([&](const auto& body) { return AcceptBody(frame, body); }, frame.body));
  ++frames_;
  digest_ = ExtendDigest(digest_, frame.crc32c);
  return absl::OkStatus();
}

absl::Status TransferChecker::AcceptBody(const KvFrame& frame, const KvBody& kv) {
  if (state_ != State::kRows) return Loss("FRAME_ORDER", "K and V after the plan");
  if (kv.layer_begin < 0 || kv.layer_begin >= kv.layer_end || kv.layer_end > expected_.layers) {
    return Loss("FRAME_LAYERS", absl::StrCat("layers [", kv.layer_begin, ", ", kv.layer_end,
                                             ") of a model of ", expected_.layers));
  }
  for (int layer = kv.layer_begin; layer < kv.layer_end; ++layer) {
    const int64_t room = KvEnd(layer) - next_token_[layer];
    if (kv.token_begin != next_token_[layer] || kv.token_count < 1 || kv.token_count > room) {
      return Loss("FRAME_TOKENS",
                  absl::StrCat("layer ", layer, ": ", kv.token_count, " tokens from ", kv.token_begin,
                               " where [", next_token_[layer], ", ", KvEnd(layer), ") is missing"));
    }
  }
  // No overflow: both factors were bounded above by the model and the prompt.
  const int64_t bytes = (kv.layer_end - kv.layer_begin) * kv.token_count * expected_.kv_token_bytes;
  if (static_cast<int64_t>(frame.payload.size()) != bytes) {
    return Loss("FRAME_SIZE", absl::StrCat(frame.payload.size(), " bytes of K and V, expected ", bytes));
  }
  for (int layer = kv.layer_begin; layer < kv.layer_end; ++layer) next_token_[layer] += kv.token_count;
  return absl::OkStatus();
}

absl::Status TransferChecker::AcceptBody(const KvFrame& frame, const HiddenBody& hidden) {
  if (state_ != State::kRows) return Loss("FRAME_ORDER", "hidden rows after the plan");
  if (hidden.layer != late_begin_) {
    return Loss("FRAME_LAYERS",
                absl::StrCat("hidden rows of layer ", hidden.layer, ", expected ", late_begin_));
  }
  const int64_t rows = static_cast<int64_t>(hidden.positions.size());
  if (rows == 0 || !AscendsBelow(hidden.positions, expected_.tokens)) {
    return Loss("FRAME_POSITIONS",
                absl::StrCat(rows, " hidden rows that do not ascend within [0, ", expected_.tokens, ")"));
  }
  const int64_t bytes = rows * expected_.hidden * static_cast<int64_t>(sizeof(float));
  if (static_cast<int64_t>(frame.payload.size()) != bytes) {
    return Loss("FRAME_SIZE", absl::StrCat(frame.payload.size(), " bytes of hidden rows, expected ", bytes));
  }
  for (int32_t position : hidden.positions) {
    if (hidden_arrived_[position]) {
      return Loss("FRAME_POSITIONS", absl::StrCat("hidden row ", position, " twice"));
    }
  }
  for (int32_t position : hidden.positions) hidden_arrived_[position] = true;
  hidden_count_ += rows;
  return absl::OkStatus();
}

absl::Status TransferChecker::AcceptBody(const KvFrame& frame, const ScoresBody& scores) {
  if (state_ != State::kRows) return Loss("FRAME_ORDER", "scores after the plan");
  if (!scores_due() || scores_arrived_) {
    return Loss("FRAME_SCORES", scores_arrived_ ? "scores twice" : "scores that nobody asked for");
  }
  const int64_t bytes = expected_.tokens * static_cast<int64_t>(sizeof(float));
  if (scores.tokens != expected_.tokens || static_cast<int64_t>(frame.payload.size()) != bytes) {
    return Loss("FRAME_SIZE", absl::StrCat(frame.payload.size(), " bytes of scores of ", scores.tokens,
                                           " tokens, expected ", bytes, " of ", expected_.tokens));
  }
  scores_arrived_ = true;
  return absl::OkStatus();
}

absl::Status TransferChecker::AcceptBody(const KvFrame& frame, const PlanBody& body) {
  if (state_ != State::kRows) return Loss("FRAME_ORDER", "a second plan");
  if (!frame.payload.empty()) return Loss("FRAME_SIZE", "a plan with a payload");
  RF_RETURN_IF_ERROR(CheckPlanShape(body.plan));
  RF_RETURN_IF_ERROR(CheckCoverage(body.plan));
  plan_ = body;
  state_ = State::kPlanned;
  return absl::OkStatus();
}

absl::Status TransferChecker::AcceptBody(const KvFrame& frame, const SealedBody& sealed) {
  if (state_ != State::kPlanned) return Loss("FRAME_ORDER", "Sealed before the plan");
  if (!frame.payload.empty()) return Loss("FRAME_SIZE", "Sealed with a payload");
  if (sealed.tokens != expected_.tokens || sealed.frames != frames_ || sealed.digest != digest_) {
    return Loss("SEAL_MISMATCH", absl::StrCat("sealed as ", sealed.tokens, " tokens in ", sealed.frames,
                                              " frames with digest ", sealed.digest, "; arrived ",
                                              expected_.tokens, ", ", frames_, ", ", digest_));
  }
  state_ = State::kSealed;
  return absl::OkStatus();
}

absl::Status TransferChecker::CheckPlanShape(const ridge::FillPlan& plan) const {
  if (plan.tokens != expected_.tokens || plan.tail_begin != tail_begin_) {
    return Loss("PLAN_MISMATCH",
                absl::StrCat("a plan for ", plan.tokens, " tokens with the tail from ", plan.tail_begin,
                             ", expected ", expected_.tokens, " and ", tail_begin_));
  }
  if (!FillsOnDecode(expected_.decision)) return CheckPlanRows(plan);
  if (plan.outliers.empty() && plan.selected.empty()) return absl::OkStatus();
  return Loss("PLAN_MISMATCH", "in wire form `hidden` the decode worker says which rows are exact");
}

absl::Status TransferChecker::CheckPlanRows(const ridge::FillPlan& plan) const {
  if (!AscendsBelow(plan.outliers, tail_begin_) || !AscendsBelow(plan.selected, tail_begin_)) {
    return Loss("PLAN_MISMATCH", "outliers and selected rows must ascend below the tail");
  }
  if (tail_begin_ > 0 && (plan.outliers.empty() || plan.outliers.front() != 0)) {
    return Loss("PLAN_MISMATCH", "row 0 must be an outlier");
  }
  const int64_t may_select = ridge::MostSelected(expected_.decision, tail_begin_);
  const bool disjoint = std::none_of(plan.selected.begin(), plan.selected.end(), [&](int32_t row) {
    return std::binary_search(plan.outliers.begin(), plan.outliers.end(), row);
  });
  if (!disjoint || static_cast<int64_t>(plan.selected.size()) > may_select) {
    return Loss("PLAN_MISMATCH", absl::StrCat(plan.selected.size(), " selected rows that cannot be"));
  }
  return absl::OkStatus();
}

absl::Status TransferChecker::CheckCoverage(const ridge::FillPlan& plan) const {
  for (int layer = 0; layer < expected_.layers; ++layer) {
    if (next_token_[layer] == KvEnd(layer)) continue;
    return Loss("TRANSFER_INCOMPLETE", absl::StrCat("layer ", layer, " has tokens [0, ", next_token_[layer],
                                                    ") of [0, ", KvEnd(layer), ")"));
  }
  if (scores_due() && !scores_arrived_) return Loss("TRANSFER_INCOMPLETE", "the scores did not arrive");
  const std::vector<int32_t> due = HiddenDue(plan);
  if (hidden_count_ != static_cast<int64_t>(due.size())) {
    return Loss("TRANSFER_INCOMPLETE",
                absl::StrCat(hidden_count_, " hidden rows arrived, due are ", due.size()));
  }
  for (int32_t position : due) {
    if (!hidden_arrived_[position]) {
      return Loss("TRANSFER_INCOMPLETE", absl::StrCat("hidden row ", position, " did not arrive"));
    }
  }
  return absl::OkStatus();
}

absl::Status TransferChecker::AcceptEnd(const absl::Status& end) const {
  if (end.ok()) {
    return sealed()
               ? absl::OkStatus()
               : Loss("TRANSFER_NOT_SEALED", absl::StrCat("ended after ", frames_, " frames without Sealed"));
  }
  // We have not cancelled: whoever did, the worker is lost to us.
  const bool keep = base::GetErrorDetail(end).has_value() && !absl::IsCancelled(end);
  if (keep) return base::WithContext(end, "prefill worker");
  switch (end.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnknown:
      return base::Error(
          absl::StatusCode::kUnavailable, "PREFILL_LOST",
          absl::StrCat("the prefill worker was lost after ", frames_, " frames: ", end.message()));
    default:
      return base::WithContext(end, "prefill worker");
  }
}

}  // namespace ridgefill::runtime
