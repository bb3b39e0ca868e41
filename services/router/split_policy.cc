#include "services/router/split_policy.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/ridge/selection.h"

namespace ridgefill::router {
namespace {

using ridge::FillDecision;
using ridge::Mode;

bool AsksForFill(const PromptFacts& prompt) {
  return prompt.mode == Mode::kSpeed || prompt.mode == Mode::kQuality;
}

absl::Status CheckAsked(const PolicyOptions& options, const PromptFacts& prompt,
                        const PrefillFacts& prefill) {
  if (!AsksForFill(prompt)) return absl::OkStatus();
  if (options.forbid_filled) {
    return base::Error(absl::StatusCode::kFailedPrecondition, "MODE_FORBIDDEN",
                       "the operator forbids filled modes; use EXACT or AUTO");
  }
  if (prompt.prompt_logprobs) {
    return base::FieldError(
        "logprobs.prompt", "PROMPT_LOGPROBS_EXACT_ONLY",
        absl::StrCat("prompt log-probabilities need mode EXACT or AUTO, got ", ridge::Name(prompt.mode)));
  }
  if (prompt.share.has_value() && !(*prompt.share >= 0 && *prompt.share <= options.max_share)) {
    return base::FieldError("selection.share", "SHARE_RANGE",
                            absl::StrCat("must be in [0, ", options.max_share, "], got ", *prompt.share));
  }
  if (prefill.split == 0) {
    return base::Error(
        absl::StatusCode::kFailedPrecondition, "NO_MAPS",
        absl::StrCat("mode ", ridge::Name(prompt.mode),
                     " needs a prefill worker with a map set and there is none; use EXACT or AUTO"));
  }
  return absl::OkStatus();
}

// Why the prompt must run EXACT; empty when it may be filled.
std::string WhyExact(const PolicyOptions& options, const PromptFacts& prompt, const PrefillFacts& prefill,
                     int tail) {
  const bool automatic = prompt.mode == Mode::kAuto;
  if (prompt.mode == Mode::kExact) return "REQUESTED";
  if (prompt.prompt_logprobs) return "PROMPT_LOGPROBS";
  if (options.forbid_filled) return "OPERATOR";
  if (prefill.split == 0) return "NO_MAPS";
  if (prompt.tokens < tail + prefill.min_bulk) return "SHORT_PROMPT";
  if (automatic && prompt.tokens < options.auto_min_tokens) return "BELOW_AUTO_MIN";
  return "";
}

FillDecision Exact(const PolicyOptions& options, const PromptFacts& prompt, const PrefillFacts& prefill,
                   const std::string& reason) {
  FillDecision decision;
  decision.mode = Mode::kExact;
  decision.reason = reason;
  decision.split = prefill.split;
  if (prefill.layers == 0 || prompt.prompt_logprobs || prompt.uncached <= options.local_max_tokens) {
    decision.local = true;
    if (prefill.layers == 0) decision.reason = "NO_PREFILL_WORKERS";
    if (prompt.uncached <= options.local_max_tokens) decision.reason = "LOCAL";
    return decision;
  }
  const bool whole = prefill.loaded_layers >= prefill.layers;
  decision.late_pass = whole ? ridge::LatePassAt::kPrefill : ridge::LatePassAt::kDecode;
  return decision;
}

}  // namespace

MapsWanted WantsMaps(const PolicyOptions& options, const PromptFacts& prompt) {
  if (options.forbid_filled || prompt.prompt_logprobs) return MapsWanted::kNo;
  if (AsksForFill(prompt)) return MapsWanted::kRequired;
  const bool may_fill = prompt.mode == Mode::kAuto && prompt.tokens >= options.auto_min_tokens;
  return may_fill ? MapsWanted::kPreferred : MapsWanted::kNo;
}

absl::StatusOr<FillDecision> Decide(const PolicyOptions& options, const PromptFacts& prompt,
                                    const PrefillFacts& prefill, const DecodeFacts& decode) {
  RF_RETURN_IF_ERROR(CheckAsked(options, prompt, prefill));
  const int tail = std::max(options.tail > 0 ? options.tail : prefill.tail_default, prefill.tail_minimum);
  const std::string why_exact = WhyExact(options, prompt, prefill, tail);
  if (!why_exact.empty()) return Exact(options, prompt, prefill, why_exact);
  FillDecision decision;
  decision.mode = prompt.mode == Mode::kQuality ? Mode::kQuality : Mode::kSpeed;
  if (decision.mode == Mode::kQuality) {
    decision.share = prompt.share.value_or(options.share);
    decision.selector = prompt.selector;
  }
  if (decode.has_maps) {
    decision.wire_form = ridge::NeedsProbe(decision) ? ridge::WireForm::kHidden : options.wire_form;
  } else if (ridge::NeedsProbe(decision)) {
    return base::Error(absl::StatusCode::kFailedPrecondition, "NO_MAPS",
                       "selector PROBE needs a decode worker with a map set; use ATTENTION");
  }
  decision.split = prefill.split;
  decision.tail = tail;
  decision.reason = prompt.mode == Mode::kAuto ? "LONG_PROMPT" : "REQUESTED";
  return decision;
}

}  // namespace ridgefill::router
