#include "services/transport/kv_convert.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status.h"
#include "services/common/convert.h"

namespace ridgefill::transport {
namespace {

absl::Status Damaged(absl::string_view reason, const std::string& message) {
  return base::Error(absl::StatusCode::kDataLoss, reason, message);
}

// A peer's own account of its time; nonsense counts as none.
absl::Duration ReadSeconds(double seconds) {
  constexpr double kLongest = 86400.0;
  return seconds >= 0 && seconds <= kLongest ? absl::Seconds(seconds) : absl::ZeroDuration();
}

runtime::PlanBody ReadPlan(const v1::PlanFrame& frame) {
  runtime::PlanBody body;
  body.plan.tokens = frame.tokens();
  body.plan.tail_begin = frame.tail_begin();
  body.plan.outliers.assign(frame.outliers().begin(), frame.outliers().end());
  body.plan.selected.assign(frame.selected().begin(), frame.selected().end());
  body.batch_invariant = frame.batch_invariant();
  body.queue_time = ReadSeconds(frame.queue_seconds());
  body.compute_time = ReadSeconds(frame.compute_seconds());
  return body;
}

struct WriteBody {
  v1::PrefillResponse& out;
  void operator()(const runtime::KvBody& body) const {
    out.mutable_kv()->set_layer_begin(body.layer_begin);
    out.mutable_kv()->set_layer_end(body.layer_end);
    out.mutable_kv()->set_token_begin(body.token_begin);
    out.mutable_kv()->set_token_count(body.token_count);
  }
  void operator()(const runtime::HiddenBody& body) const {
    out.mutable_hidden()->set_layer(body.layer);
    out.mutable_hidden()->mutable_positions()->Add(body.positions.begin(), body.positions.end());
  }
  void operator()(const runtime::ScoresBody& body) const { out.mutable_scores()->set_tokens(body.tokens); }
  void operator()(const runtime::PlanBody& body) const {
    auto& plan = *out.mutable_plan();
    plan.set_tokens(body.plan.tokens);
    plan.set_tail_begin(body.plan.tail_begin);
    plan.mutable_outliers()->Add(body.plan.outliers.begin(), body.plan.outliers.end());
    plan.mutable_selected()->Add(body.plan.selected.begin(), body.plan.selected.end());
    plan.set_batch_invariant(body.batch_invariant);
    plan.set_queue_seconds(absl::ToDoubleSeconds(body.queue_time));
    plan.set_compute_seconds(absl::ToDoubleSeconds(body.compute_time));
  }
  void operator()(const runtime::SealedBody& body) const {
    out.mutable_sealed()->set_tokens(body.tokens);
    out.mutable_sealed()->set_frames(body.frames);
    out.mutable_sealed()->set_digest(body.digest);
  }
};

}  // namespace

v1::PrefillRequest ToProto(const runtime::PrefillCall& call) {
  v1::PrefillRequest out;
  out.set_transfer_id_high(call.id.high);
  out.set_transfer_id_low(call.id.low);
  *out.mutable_hello() = common::ToProto(call.hello);
  out.mutable_tokens()->Add(call.tokens.begin(), call.tokens.end());
  *out.mutable_decision() = common::ToProto(call.decision);
  return out;
}

absl::StatusOr<runtime::PrefillCall> FromProto(const v1::PrefillRequest& request) {
  runtime::PrefillCall out;
  out.id = {request.transfer_id_high(), request.transfer_id_low()};
  out.hello = common::FromProto(request.hello());
  out.tokens.assign(request.tokens().begin(), request.tokens().end());
  RF_ASSIGN_OR_RETURN(out.decision, common::FromProto(request.decision()));
  return out;
}

void ToProto(const runtime::TransferId& id, runtime::KvFrame frame, v1::PrefillResponse& response) {
  response.Clear();
  response.set_transfer_id_high(id.high);
  response.set_transfer_id_low(id.low);
  response.set_sequence(frame.sequence);
  std::visit(WriteBody{response}, frame.body);
  response.set_payload(std::move(frame.payload));
  response.set_crc32c(frame.crc32c);
}

absl::StatusOr<runtime::KvFrame> FromProto(const runtime::TransferId& id, v1::PrefillResponse& response) {
  if (response.transfer_id_high() != id.high || response.transfer_id_low() != id.low) {
    return Damaged("FRAME_TRANSFER_ID",
                   absl::StrFormat("a frame of transfer %016x%016x came in one for %016x%016x",
                                   response.transfer_id_high(), response.transfer_id_low(), id.high, id.low));
  }
  runtime::KvFrame frame;
  frame.sequence = response.sequence();
  frame.crc32c = response.crc32c();
  switch (response.body_case()) {
    case v1::PrefillResponse::kKv:
      frame.body = runtime::KvBody{response.kv().layer_begin(), response.kv().layer_end(),
                                   response.kv().token_begin(), response.kv().token_count()};
      break;
    case v1::PrefillResponse::kHidden: {
      const auto& positions = response.hidden().positions();
      frame.body = runtime::HiddenBody{response.hidden().layer(), {positions.begin(), positions.end()}};
      break;
    }
    case v1::PrefillResponse::kScores:
      frame.body = runtime::ScoresBody{response.scores().tokens()};
      break;
    case v1::PrefillResponse::kPlan:
      frame.body = ReadPlan(response.plan());
      break;
    case v1::PrefillResponse::kSealed:
      frame.body = runtime::SealedBody{response.sealed().tokens(), response.sealed().frames(),
                                       response.sealed().digest()};
      break;
    case v1::PrefillResponse::BODY_NOT_SET:
      return Damaged("FRAME_BODY",
                     absl::StrCat("frame ", frame.sequence, " has no body that this version knows"));
  }
  frame.payload = std::move(*response.mutable_payload());
  return frame;
}

}  // namespace ridgefill::transport
