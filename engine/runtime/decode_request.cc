#include "engine/runtime/decode_request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace ridgefill::runtime {
namespace {

absl::Status CheckPromptLogprobs(const DecodeCall& call) {
  const bool exact = call.decision.mode == ridge::Mode::kExact;
  const bool here = call.decision.local || call.decision.late_pass == ridge::LatePassAt::kDecode;
  if (exact && here) return absl::OkStatus();
  return base::Error(
      absl::StatusCode::kFailedPrecondition, "PROMPT_LOGPROBS",
      "prompt log-probabilities need mode EXACT with its last layers on the decode worker (a local "
      "prefill, or the late pass on decode)");
}

absl::Status CheckLengths(const DecodeCall& call, int64_t context_tokens) {
  const int64_t tokens = static_cast<int64_t>(call.tokens.size());
  if (tokens == 0) {
    return base::FieldError("tokens", "PROMPT_EMPTY", "the prompt is empty; allowed is 1 token or more");
  }
  if (call.max_tokens < 1) {
    return base::FieldError("max_tokens", "MAX_TOKENS_RANGE",
                            absl::StrCat("max_tokens must be at least 1, got ", call.max_tokens));
  }
  // Written so that no max_tokens can make the sum wrap.
  if (tokens <= context_tokens && call.max_tokens <= context_tokens - tokens) return absl::OkStatus();
  return base::FieldError(
      "max_tokens", "CONTEXT_LENGTH",
      absl::StrCat("the prompt has ", tokens, " tokens and max_tokens is ", call.max_tokens,
                   "; together at most ", context_tokens, " are allowed"));
}

absl::Status CheckFill(const ridge::FillDecision& decision, ridge::MapSets maps) {
  if (!FillsOnDecode(decision)) return absl::OkStatus();
  if (maps.empty()) {
    return base::Error(absl::StatusCode::kFailedPrecondition, "NO_MAPS",
                       "in wire form `hidden`, and for selector `probe`, the decode worker fills: it needs a "
                       "map set and this one has none");
  }
  if (ridge::FindSplit(maps, decision.split) != nullptr) return absl::OkStatus();
  return base::Error(absl::StatusCode::kFailedPrecondition, "MAPS_OTHER_SPLIT",
                     absl::StrCat("split ", decision.split, ": the decode worker's map sets were fitted for ",
                                  ridge::SplitNames(maps)));
}

}  // namespace

DecodeRow DecodeRequest::NextRow() const {
  return {last_token, static_cast<int32_t>(prompt_tokens() + generated - 1), blocks.blocks};
}

PieceRows DecodeRequest::NextPiece(int64_t rows) const {
  PieceRows piece;
  piece.positions = absl::MakeConstSpan(late_rows).subspan(late_done, rows);
  piece.blocks = blocks.blocks;
  piece.layer_begin = work.late_begin;
  if (call.decision.local) {
    piece.tokens = absl::MakeConstSpan(call.tokens).subspan(late_done, rows);  // position i is row i
  } else {
    piece.hidden = &intake->hidden();
  }
  return piece;
}

void DecodeRequest::Received(int layers) {
  batch_invariant = batch_invariant && intake->plan().batch_invariant;
  if (!FillsOnDecode(call.decision) || work.tail_begin == 0) {
    BeginLatePass(intake->plan().plan, layers);
    return;
  }
  fill = std::make_unique<BulkFill>(
      BulkFill::Prompt{&call.decision, call.tokens, blocks.blocks, &intake->hidden(), intake->scores()});
  state = RequestState::kFilling;
}

void DecodeRequest::BeginLatePass(ridge::FillPlan final_plan, int layers) {
  plan = std::move(final_plan);
  if (work.late_begin == layers) {
    late_rows = {static_cast<int32_t>(prompt_tokens() - 1)};
  } else {
    late_rows = plan.ExactRows();
  }
  state = RequestState::kFinishing;
}

StartedEvent DecodeRequest::Started() const {
  StartedEvent event;
  FillReport& report = event.report;
  report.mode = call.decision.mode;
  report.split = call.decision.split;
  report.tail = call.decision.tail;
  report.prompt_tokens = plan.tokens;
  report.filled = plan.filled_count();
  report.exact = plan.exact_count();
  report.outliers = static_cast<int64_t>(plan.outliers.size());
  report.selected = static_cast<int64_t>(plan.selected.size());
  report.wire_form = call.decision.wire_form;
  report.batch_invariant = batch_invariant;
  report.reason = call.decision.reason;
  if (intake == nullptr) {
    event.times = SplitLocalTimes(times);
  } else {
    event.times = SplitTimes(times, {intake->plan().queue_time, intake->plan().compute_time});
  }
  event.prompt_logprobs = prompt_logprobs;
  return event;
}

absl::Status CheckCall(const DecodeCall& call, const CallLimits& limits) {
  RF_RETURN_IF_ERROR(CheckLengths(call, limits.context_tokens));
  RF_RETURN_IF_ERROR(CheckTokenIds(call.tokens, limits.vocab));
  RF_RETURN_IF_ERROR(CheckDecision(call.decision, limits.layers));
  RF_RETURN_IF_ERROR(CheckFill(call.decision, limits.maps));
  RF_RETURN_IF_ERROR(sampling::Validate(call.sampling, limits.vocab));
  if (call.prompt_logprobs) RF_RETURN_IF_ERROR(CheckPromptLogprobs(call));
  if (call.decision.local || limits.has_sources) return absl::OkStatus();
  return base::Error(absl::StatusCode::kFailedPrecondition, "NO_PREFILL_WORKERS",
                     "this decode worker has no way to a prefill worker; only local prefill is possible");
}

}  // namespace ridgefill::runtime
