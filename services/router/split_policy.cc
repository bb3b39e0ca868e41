#include "services/router/split_policy.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"
#include "engine/ridge/selection.h"

namespace ridgefill::router {
namespace {

using ridge::FillDecision;
using ridge::Mode;

bool AsksForFill(const PromptFacts& prompt) {
  return prompt.mode == Mode::kSpeed || prompt.mode == Mode::kQuality;
}

bool AsksForProbe(const PromptFacts& prompt) {
  return prompt.mode == Mode::kQuality && prompt.selector == ridge::Selector::kProbe;
}

// What both workers hold of the split that the prompt wants, and which of them would fill.
struct Choice {
  int wanted;  // 0: the default one
  const PrefillFacts& worker;
  const std::vector<MapFacts>& decode_maps;
  const MapFacts &prefill, &decode;
  bool may_be_on_decode;

  // The prefill worker has no such maps; it runs the layers below the split in any case.
  bool decode_alone() const {
    return may_be_on_decode && prefill.split == 0 && decode.split <= worker.loaded_layers;
  }
  const MapFacts& filling() const { return decode_alone() ? decode : prefill; }
};

Choice Choose(const PolicyOptions& options, const PromptFacts& prompt, const PrefillFacts& worker,
              const std::vector<MapFacts>& decode_maps) {
  const int wanted = WantedSplit(options, prompt);
  const MapFacts& prefill = OfSplit(worker.maps, wanted);
  // Of the default split the prefill worker says which it is, where it has any.
  const MapFacts& decode = OfSplit(decode_maps, prefill.split > 0 ? prefill.split : wanted);
  const bool may = worker.layers > 0 && WantsMapsOnDecode(options, prompt) != MapsWanted::kNo;
  return {wanted, worker, decode_maps, prefill, decode, may};
}

absl::Status NoMaps(const PromptFacts& prompt, const Choice& choice) {
  std::set<int, std::greater<>> splits;
  for (const MapFacts& maps : choice.worker.maps) splits.insert(maps.split);
  if (choice.may_be_on_decode) {
    for (const MapFacts& maps : choice.decode_maps) splits.insert(maps.split);
  }
  std::string why;
  if (splits.empty()) {
    why = " needs a worker that fills, with a map set, and there is none; use EXACT or AUTO";
  } else if (choice.may_be_on_decode && choice.decode.split > choice.worker.loaded_layers) {
    why = absl::StrCat(": the decode worker fills with a map set of split ", choice.decode.split,
                       ", and the prefill worker holds layers [0, ", choice.worker.loaded_layers, ") alone");
  } else {
    why = absl::StrCat(" with split ", choice.wanted,
                       " needs a worker that fills with a map set of that split; there is one of ",
                       absl::StrJoin(splits, ", "));
  }
  return base::Error(absl::StatusCode::kFailedPrecondition, "NO_MAPS",
                     absl::StrCat("mode ", ridge::Name(prompt.mode), why));
}

absl::Status CheckAsked(const PolicyOptions& options, const PromptFacts& prompt, const Choice& choice) {
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
  return choice.filling().split == 0 ? NoMaps(prompt, choice) : absl::OkStatus();
}

// Why the prompt must run EXACT; empty when it may be filled.
std::string WhyExact(const PolicyOptions& options, const PromptFacts& prompt, const MapFacts& maps,
                     int tail) {
  const bool automatic = prompt.mode == Mode::kAuto;
  if (prompt.mode == Mode::kExact) return "REQUESTED";
  if (prompt.prompt_logprobs) return "PROMPT_LOGPROBS";
  if (options.forbid_filled) return "OPERATOR";
  if (maps.split == 0) return "NO_MAPS";
  if (prompt.tokens < tail + maps.min_bulk) return "SHORT_PROMPT";
  if (automatic && prompt.tokens < options.auto_min_tokens) return "BELOW_AUTO_MIN";
  return "";
}

FillDecision Exact(const PolicyOptions& options, const PromptFacts& prompt, const PrefillFacts& prefill,
                   const std::string& reason) {
  FillDecision decision;
  decision.mode = Mode::kExact;
  decision.reason = reason;
  decision.split = OfSplit(prefill.maps, 0).split;
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

const MapFacts& OfSplit(const std::vector<MapFacts>& maps, int split) {
  static const MapFacts none;
  for (const MapFacts& facts : maps) {
    if (split == 0 || facts.split == split) return facts;
  }
  return none;
}

int WantedSplit(const PolicyOptions& options, const PromptFacts& prompt) {
  if (prompt.split > 0) return prompt.split;
  return prompt.mode == Mode::kQuality ? options.quality_split : options.speed_split;
}

MapsWanted WantsMaps(const PolicyOptions& options, const PromptFacts& prompt) {
  if (options.forbid_filled || prompt.prompt_logprobs) return MapsWanted::kNo;
  if (AsksForFill(prompt)) return MapsWanted::kRequired;
  const bool may_fill = prompt.mode == Mode::kAuto && prompt.tokens >= options.auto_min_tokens;
  return may_fill ? MapsWanted::kPreferred : MapsWanted::kNo;
}

MapsWanted WantsMapsOnDecode(const PolicyOptions& options, const PromptFacts& prompt) {
  if (WantsMaps(options, prompt) == MapsWanted::kNo) return MapsWanted::kNo;
  if (AsksForProbe(prompt)) return MapsWanted::kRequired;
  return options.wire_form == ridge::WireForm::kHidden ? MapsWanted::kPreferred : MapsWanted::kNo;
}

absl::StatusOr<FillDecision> Decide(const PolicyOptions& options, const PromptFacts& prompt,
                                    const PrefillFacts& prefill, const std::vector<MapFacts>& decode) {
  const Choice choice = Choose(options, prompt, prefill, decode);
  const MapFacts& maps = choice.filling();
  RF_RETURN_IF_ERROR(CheckAsked(options, prompt, choice));
  const int tail = std::max(options.tail > 0 ? options.tail : maps.tail_default, maps.tail_minimum);
  const std::string why_exact = WhyExact(options, prompt, maps, tail);
  if (!why_exact.empty()) return Exact(options, prompt, prefill, why_exact);
  FillDecision decision;
  decision.mode = prompt.mode == Mode::kQuality ? Mode::kQuality : Mode::kSpeed;
  if (decision.mode == Mode::kQuality) {
    decision.share = prompt.share.value_or(options.share);
    decision.selector = prompt.selector;
    if (!ridge::HasRoomForAWindow(decision, prompt.tokens - tail)) decision.share = 0;
  }
  if (choice.decode.split > 0) {
    const bool on_decode = ridge::NeedsProbe(decision) || choice.decode_alone();
    decision.wire_form = on_decode ? ridge::WireForm::kHidden : options.wire_form;
  } else if (ridge::NeedsProbe(decision)) {
    return base::Error(absl::StatusCode::kFailedPrecondition, "NO_MAPS",
                       absl::StrCat("selector PROBE needs a decode worker with a map set of split ",
                                    maps.split, "; use ATTENTION"));
  }
  decision.split = maps.split;
  decision.tail = tail;
  decision.reason = prompt.mode == Mode::kAuto ? "LONG_PROMPT" : "REQUESTED";
  return decision;
}

}  // namespace ridgefill::router
