#include "services/common/convert.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "engine/base/status.h"

namespace ridgefill::common {

v1::FillMode ToProto(ridge::Mode mode) {
  switch (mode) {
    case ridge::Mode::kAuto:
      return v1::FILL_MODE_AUTO;
    case ridge::Mode::kExact:
      return v1::FILL_MODE_EXACT;
    case ridge::Mode::kSpeed:
      return v1::FILL_MODE_SPEED;
    case ridge::Mode::kQuality:
      return v1::FILL_MODE_QUALITY;
  }
  return v1::FILL_MODE_UNSPECIFIED;
}

absl::StatusOr<ridge::Mode> FromProto(v1::FillMode mode) {
  switch (mode) {
    case v1::FILL_MODE_UNSPECIFIED:
    case v1::FILL_MODE_AUTO:
      return ridge::Mode::kAuto;
    case v1::FILL_MODE_EXACT:
      return ridge::Mode::kExact;
    case v1::FILL_MODE_SPEED:
      return ridge::Mode::kSpeed;
    case v1::FILL_MODE_QUALITY:
      return ridge::Mode::kQuality;
    default:
      break;
  }
  return base::FieldError(
      "mode", "MODE_UNKNOWN",
      absl::StrCat("unknown value ", static_cast<int>(mode), "; allowed: AUTO, EXACT, SPEED, QUALITY"));
}

v1::Selector ToProto(ridge::Selector selector) {
  switch (selector) {
    case ridge::Selector::kAttention:
      return v1::SELECTOR_ATTENTION;
    case ridge::Selector::kProbe:
      return v1::SELECTOR_PROBE;
    case ridge::Selector::kRandom:
      return v1::SELECTOR_RANDOM;
    case ridge::Selector::kRarity:
      return v1::SELECTOR_RARITY;
    case ridge::Selector::kNone:
      return v1::SELECTOR_NONE;
  }
  return v1::SELECTOR_UNSPECIFIED;
}

absl::StatusOr<ridge::Selector> FromProto(v1::Selector selector) {
  switch (selector) {
    case v1::SELECTOR_UNSPECIFIED:
    case v1::SELECTOR_ATTENTION:
      return ridge::Selector::kAttention;
    case v1::SELECTOR_PROBE:
      return ridge::Selector::kProbe;
    case v1::SELECTOR_RANDOM:
      return ridge::Selector::kRandom;
    case v1::SELECTOR_RARITY:
      return ridge::Selector::kRarity;
    case v1::SELECTOR_NONE:
      return ridge::Selector::kNone;
    default:
      break;
  }
  return base::FieldError("selection.selector", "SELECTOR_UNKNOWN",
                          absl::StrCat("unknown value ", static_cast<int>(selector),
                                       "; allowed: ATTENTION, PROBE, RANDOM, RARITY, NONE"));
}

v1::WireForm ToProto(ridge::WireForm form) {
  return form == ridge::WireForm::kHidden ? v1::WIRE_FORM_HIDDEN : v1::WIRE_FORM_KV;
}

std::string WireFormName(v1::WireForm form) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::WireForm_Name(form), "WIRE_FORM_"));
}

v1::Hello ToProto(const runtime::Hello& hello) {
  v1::Hello out;
  out.set_protocol_major(hello.protocol_major);
  out.set_protocol_minor(hello.protocol_minor);
  out.mutable_model()->set_name(hello.model.name);
  out.mutable_model()->set_arch(hello.model.arch);
  out.mutable_model()->set_dimensions(hello.model.dimensions);
  out.mutable_model()->set_tokenizer_digest(hello.model.tokenizer_digest);
  out.mutable_model()->set_weights_digest(hello.model.weights_digest);
  for (const runtime::MapSetIdentity& maps : hello.maps) {
    v1::MapSetIdentity& to = *out.add_maps();
    to.set_split(maps.split);
    to.set_digest(maps.digest);
  }
  out.set_cache_layout(hello.cache_layout);
  return out;
}

v1::MapSetInfo ToProto(const ridge::MapSetManifest& manifest) {
  v1::MapSetInfo out;
  out.set_split(manifest.split);
  out.set_tail_default(manifest.tail_default);
  out.set_tail_minimum(manifest.tail_minimum);
  out.set_min_bulk(manifest.min_bulk);
  out.set_digest(manifest.digest);
  return out;
}

runtime::Hello FromProto(const v1::Hello& hello) {
  runtime::Hello out;
  out.protocol_major = hello.protocol_major();
  out.protocol_minor = hello.protocol_minor();
  out.model = {hello.model().name(), hello.model().arch(), hello.model().dimensions(),
               hello.model().tokenizer_digest(), hello.model().weights_digest()};
  for (const v1::MapSetIdentity& maps : hello.maps()) out.maps.push_back({maps.split(), maps.digest()});
  out.cache_layout = hello.cache_layout();
  return out;
}

v1::FillDecision ToProto(const ridge::FillDecision& decision) {
  v1::FillDecision out;
  out.set_mode(ToProto(decision.mode));
  out.set_split(decision.split);
  out.set_tail(decision.tail);
  out.set_share(decision.share);
  out.set_selector(ToProto(decision.selector));
  out.set_late_pass(decision.late_pass == ridge::LatePassAt::kPrefill ? v1::LATE_PASS_AT_PREFILL
                                                                      : v1::LATE_PASS_AT_DECODE);
  out.set_wire_form(ToProto(decision.wire_form));
  out.set_local(decision.local);
  out.set_reason(decision.reason);
  return out;
}

absl::StatusOr<ridge::FillDecision> FromProto(const v1::FillDecision& decision) {
  ridge::FillDecision out;
  RF_ASSIGN_OR_RETURN(out.mode, FromProto(decision.mode()));
  if (out.mode == ridge::Mode::kAuto) {
    return base::FieldError("decision.mode", "MODE_UNDECIDED",
                            "a worker takes EXACT, SPEED or QUALITY; AUTO is the router's to decide");
  }
  if (decision.split() < 0 || decision.tail() < 0) {
    return base::FieldError(
        "decision", "DECISION_RANGE",
        absl::StrCat("split and tail must be at least 0, got ", decision.split(), " and ", decision.tail()));
  }
  if (!(decision.share() >= 0 && decision.share() <= 1)) {
    return base::FieldError("decision.share", "DECISION_RANGE",
                            absl::StrCat("must be in [0, 1], got ", decision.share()));
  }
  out.split = decision.split();
  out.tail = decision.tail();
  out.share = decision.share();
  RF_ASSIGN_OR_RETURN(out.selector, FromProto(decision.selector()));
  out.late_pass = decision.late_pass() == v1::LATE_PASS_AT_PREFILL ? ridge::LatePassAt::kPrefill
                                                                   : ridge::LatePassAt::kDecode;
  out.wire_form =
      decision.wire_form() == v1::WIRE_FORM_HIDDEN ? ridge::WireForm::kHidden : ridge::WireForm::kKv;
  out.local = decision.local();
  out.reason = decision.reason();
  return out;
}

v1::FillReport ToProto(const runtime::FillReport& report) {
  v1::FillReport out;
  out.set_mode(ToProto(report.mode));
  out.set_split(report.split);
  out.set_tail(report.tail);
  out.set_filled(report.filled);
  out.set_exact(report.exact);
  out.set_outliers(report.outliers);
  out.set_selected(report.selected);
  out.set_cached(report.cached);
  out.set_batch_invariant(report.batch_invariant);
  out.set_reason(report.reason);
  out.set_wire_form(ToProto(report.wire_form));
  return out;
}

sampling::SamplingParams FromProto(const v1::SamplingOptions& options) {
  sampling::SamplingParams out;
  if (options.has_temperature()) out.temperature = options.temperature();
  if (options.has_top_k()) out.top_k = options.top_k();
  if (options.has_top_p()) out.top_p = options.top_p();
  if (options.has_min_p()) out.min_p = options.min_p();
  if (options.has_repetition_penalty()) out.repetition_penalty = options.repetition_penalty();
  if (options.has_presence_penalty()) out.presence_penalty = options.presence_penalty();
  if (options.has_frequency_penalty()) out.frequency_penalty = options.frequency_penalty();
  out.logit_bias.assign(options.logit_bias().begin(), options.logit_bias().end());
  std::sort(out.logit_bias.begin(), out.logit_bias.end());
  out.seed = options.seed();
  return out;
}

namespace {

void SetSampling(const sampling::SamplingParams& params, v1::SamplingOptions& out) {
  out.set_temperature(params.temperature);
  out.set_top_k(params.top_k);
  out.set_top_p(params.top_p);
  out.set_min_p(params.min_p);
  out.set_repetition_penalty(params.repetition_penalty);
  out.set_presence_penalty(params.presence_penalty);
  out.set_frequency_penalty(params.frequency_penalty);
  for (const auto& [token, bias] : params.logit_bias) (*out.mutable_logit_bias())[token] = bias;
  out.set_seed(params.seed);
}

}  // namespace

v1::DecodeRequest ToProto(const runtime::DecodeCall& call) {
  v1::DecodeRequest out;
  out.set_request_id(call.request_id);
  out.mutable_tokens()->Add(call.tokens.begin(), call.tokens.end());
  *out.mutable_decision() = ToProto(call.decision);
  out.set_prefill_address(call.prefill_address);
  SetSampling(call.sampling, *out.mutable_sampling());
  out.set_max_tokens(call.max_tokens);
  out.set_min_tokens(call.sampling.min_tokens);
  out.mutable_stop_ids()->Add(call.sampling.stop_ids.begin(), call.sampling.stop_ids.end());
  out.set_ignore_eos(call.sampling.ignore_eos);
  if (call.sampling.logprobs.has_value()) out.set_top_logprobs(*call.sampling.logprobs);
  out.set_prompt_logprobs(call.prompt_logprobs);
  return out;
}

absl::StatusOr<runtime::DecodeCall> FromProto(const v1::DecodeRequest& request) {
  runtime::DecodeCall out;
  out.request_id = request.request_id();
  out.tokens.assign(request.tokens().begin(), request.tokens().end());
  RF_ASSIGN_OR_RETURN(out.decision, FromProto(request.decision()));
  out.prefill_address = request.prefill_address();
  out.sampling = FromProto(request.sampling());
  out.sampling.min_tokens = request.min_tokens();
  out.sampling.stop_ids.assign(request.stop_ids().begin(), request.stop_ids().end());
  out.sampling.ignore_eos = request.ignore_eos();
  if (request.has_top_logprobs()) out.sampling.logprobs = request.top_logprobs();
  if (request.max_tokens() < 1) {
    return base::FieldError("max_tokens", "MAX_TOKENS_RANGE",
                            absl::StrCat("must be at least 1, got ", request.max_tokens()));
  }
  out.max_tokens = request.max_tokens();
  out.prompt_logprobs = request.prompt_logprobs();
  return out;
}

v1::GeneratedToken ToProto(const sampling::SampleResult& sample, bool with_logprobs) {
  v1::GeneratedToken out;
  out.set_id(sample.token);
  out.set_is_stop(sample.is_stop);
  if (!with_logprobs) return out;
  out.set_logprob(sample.logprob);
  for (const auto& [token, logprob] : sample.top_logprobs) {
    auto* top = out.add_top();
    top->set_id(token);
    top->set_logprob(logprob);
  }
  return out;
}

v1::DecodeStarted ToProto(const runtime::StartedEvent& event) {
  v1::DecodeStarted out;
  *out.mutable_fill() = ToProto(event.report);
  out.set_decode_queue_seconds(absl::ToDoubleSeconds(event.times.decode_queue));
  out.set_prefill_queue_seconds(absl::ToDoubleSeconds(event.times.prefill_queue));
  out.set_prefill_compute_seconds(absl::ToDoubleSeconds(event.times.prefill_compute));
  out.set_transfer_exposed_seconds(absl::ToDoubleSeconds(event.times.transfer_exposed));
  out.set_late_pass_seconds(absl::ToDoubleSeconds(event.times.late_pass));
  out.set_first_step_seconds(absl::ToDoubleSeconds(event.times.first_step));
  out.mutable_prompt_logprobs()->Add(event.prompt_logprobs.begin(), event.prompt_logprobs.end());
  return out;
}

v1::FinishReason ToProto(runtime::FinishReason reason) {
  return reason == runtime::FinishReason::kStop ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH;
}

}  // namespace ridgefill::common
