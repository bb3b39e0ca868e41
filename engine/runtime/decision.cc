#include "engine/runtime/decision.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/ridge/selection.h"

namespace ridgefill::runtime {
namespace {

absl::Status Unimplemented(absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kUnimplemented, reason, message);
}

absl::Status Invalid(absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kInvalidArgument, reason, message);
}

absl::Status CheckWireForm(const ridge::FillDecision& decision) {
  const bool hidden = decision.wire_form == ridge::WireForm::kHidden;
  if (hidden && decision.mode == ridge::Mode::kExact) {
    return Invalid("DECISION_WIRE_FORM", "wire form `hidden` is for SPEED and QUALITY; EXACT takes `kv`");
  }
  if (hidden || !ridge::NeedsProbe(decision)) return absl::OkStatus();
  return Invalid("DECISION_WIRE_FORM", "selector `probe` may choose any row, so it needs wire form `hidden`");
}

}  // namespace

absl::Status CheckDecision(const ridge::FillDecision& decision, int layers) {
  using ridge::Mode;
  if (decision.mode == Mode::kAuto) {
    return Invalid("DECISION_MODE", "a fill decision must be EXACT, SPEED or QUALITY");
  }
  RF_RETURN_IF_ERROR(CheckWireForm(decision));
  const bool exact = decision.mode == Mode::kExact;
  if (decision.local) {
    return exact ? absl::OkStatus()
                 : Invalid("DECISION_LOCAL", absl::StrCat("a local prefill is EXACT; the decision is ",
                                                          ridge::Name(decision.mode)));
  }
  if (decision.late_pass == ridge::LatePassAt::kPrefill) {
    return exact ? absl::OkStatus()
                 : Unimplemented(
                       "LATE_PASS_ON_PREFILL",
                       absl::StrCat(ridge::Name(decision.mode), " runs its late pass on the decode worker"));
  }
  if (decision.split < 1 || decision.split >= layers) {
    return Invalid("DECISION_SPLIT", absl::StrCat("split ", decision.split, ": allowed is 1 to ", layers - 1,
                                                  " for a model of ", layers, " layers"));
  }
  if (!exact && decision.tail < 1) {
    return Invalid("DECISION_TAIL", absl::StrCat("tail ", decision.tail, ": ", ridge::Name(decision.mode),
                                                 " needs at least 1 exact row"));
  }
  if (decision.mode == Mode::kQuality && !(decision.share >= 0 && decision.share <= 1)) {
    return Invalid("DECISION_SHARE", absl::StrCat("share ", decision.share, ": allowed is 0 to 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckTokenIds(absl::Span<const int32_t> tokens, int vocab) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab) continue;
    return base::FieldError(
        "tokens", "TOKEN_ID_RANGE",
        absl::StrCat("token ", i, " has id ", tokens[i], "; allowed is 0 to ", vocab - 1));
  }
  return absl::OkStatus();
}

WorkSplit SplitWork(const ridge::FillDecision& decision, int layers, int64_t tokens) {
  WorkSplit split;
  split.tail_begin = ridge::TailBegin(decision, tokens);
  if (decision.local) return split;
  split.late_begin = decision.late_pass == ridge::LatePassAt::kPrefill ? layers : decision.split;
  return split;
}

}  // namespace ridgefill::runtime
