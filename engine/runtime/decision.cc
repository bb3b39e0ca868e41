#include "engine/runtime/decision.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace ridgefill::runtime {
namespace {

absl::Status Unimplemented(absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kUnimplemented, reason, message);
}

absl::Status Invalid(absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kInvalidArgument, reason, message);
}

}  // namespace

absl::Status CheckDecision(const ridge::FillDecision& decision, int layers) {
  using ridge::Mode;
  if (decision.mode == Mode::kAuto) {
    return Invalid("DECISION_MODE", "a fill decision must be EXACT, SPEED or QUALITY");
  }
  if (decision.wire_form != ridge::WireForm::kKv) {
    return Unimplemented("WIRE_FORM_HIDDEN", "wire form `hidden` is not available yet; use `kv`");
  }
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
