#include "services/router/request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/tokenizer/stop_matcher.h"
#include "services/common/convert.h"

namespace ridgefill::router {
namespace {

int64_t PromptBytes(const v1::ChatPrompt& chat) {
  int64_t bytes = 0;
  for (const auto& message : chat.messages()) bytes += static_cast<int64_t>(message.content().size());
  return bytes;
}

absl::Status CheckBytes(absl::string_view field, int64_t bytes, const RequestLimits& limits) {
  if (bytes <= limits.max_prompt_bytes) return absl::OkStatus();
  return base::FieldError(
      field, "PROMPT_TOO_LONG",
      absl::StrCat("the prompt has ", bytes, " bytes; at most ", limits.max_prompt_bytes, " are taken"));
}

absl::Status CheckText(absl::string_view field, const std::string& text, const RequestLimits& limits) {
  if (text.empty()) return base::FieldError(field, "PROMPT_EMPTY", "must not be empty");
  return CheckBytes(field, static_cast<int64_t>(text.size()), limits);
}

absl::Status CheckChat(absl::string_view field, const v1::ChatPrompt& chat, const RequestLimits& limits) {
  if (chat.messages().empty()) {
    return base::FieldError(absl::StrCat(field, ".messages"), "PROMPT_EMPTY",
                            "at least one message is required");
  }
  return CheckBytes(absl::StrCat(field, ".messages"), PromptBytes(chat), limits);
}

absl::Status CheckPrompt(const v1::GenerateRequest& request, const RequestLimits& limits) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      return CheckText("text", request.text(), limits);
    case v1::GenerateRequest::kChat:
      return CheckChat("chat", request.chat(), limits);
    case v1::GenerateRequest::kTokens:
      if (request.tokens().ids().empty()) {
        return base::FieldError("tokens.ids", "PROMPT_EMPTY", "must not be empty");
      }
      return CheckIds("tokens.ids", request.tokens().ids(), limits.vocab_size);
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return base::FieldError("prompt", "PROMPT_MISSING", "one of text, chat or tokens is required");
}

absl::Status CheckStopStrings(const v1::StopOptions& stop) {
  if (stop.stop_strings_size() > kMaxStopStrings) {
    return base::FieldError("stop.stop_strings", "STOP_STRINGS",
                            absl::StrCat("at most ", kMaxStopStrings, ", got ", stop.stop_strings_size()));
  }
  for (int i = 0; i < stop.stop_strings_size(); ++i) {
    const std::string& text = stop.stop_strings(i);
    if (text.empty() || text.size() > kMaxStopStringBytes) {
      return base::FieldError(
          absl::StrCat("stop.stop_strings[", i, "]"), "STOP_STRINGS",
          absl::StrCat("must have 1 to ", kMaxStopStringBytes, " bytes, has ", text.size()));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseStop(const v1::StopOptions& stop, const RequestLimits& limits, ParsedRequest& out) {
  if (stop.has_max_tokens() && stop.max_tokens() < 1) {
    return base::FieldError("stop.max_tokens", "MAX_TOKENS_RANGE",
                            absl::StrCat("must be at least 1, got ", stop.max_tokens()));
  }
  const int64_t most = stop.has_max_tokens() ? stop.max_tokens() : limits.context_tokens;
  if (stop.min_tokens() < 0 || stop.min_tokens() > most) {
    return base::FieldError("stop.min_tokens", "MIN_TOKENS_RANGE",
                            absl::StrCat("must be in [0, ", most, "], got ", stop.min_tokens()));
  }
  if (stop.stop_ids_size() > kMaxStopIds) {
    return base::FieldError("stop.stop_ids", "STOP_IDS",
                            absl::StrCat("at most ", kMaxStopIds, ", got ", stop.stop_ids_size()));
  }
  RF_RETURN_IF_ERROR(CheckIds("stop.stop_ids", stop.stop_ids(), limits.vocab_size));
  RF_RETURN_IF_ERROR(CheckStopStrings(stop));
  out.max_tokens = stop.max_tokens();
  out.sampling.min_tokens = stop.min_tokens();
  out.sampling.stop_ids.assign(stop.stop_ids().begin(), stop.stop_ids().end());
  out.sampling.ignore_eos = stop.ignore_eos();
  out.stop_strings.assign(stop.stop_strings().begin(), stop.stop_strings().end());
  return absl::OkStatus();
}

absl::Status ParseLogprobs(const v1::LogprobOptions& logprobs, ParsedRequest& out) {
  if (logprobs.top() < 0 || logprobs.top() > sampling::kMaxLogprobs) {
    return base::FieldError(
        "logprobs.top", "LOGPROBS_RANGE",
        absl::StrCat("must be in [0, ", sampling::kMaxLogprobs, "], got ", logprobs.top()));
  }
  if (logprobs.enabled() || logprobs.top() > 0) out.sampling.logprobs = logprobs.top();
  out.prompt_logprobs = logprobs.prompt();
  return absl::OkStatus();
}

absl::Status ParseSelection(const v1::GenerateRequest& request, ParsedRequest& out) {
  if (!request.has_selection()) return absl::OkStatus();
  if (out.mode != ridge::Mode::kQuality) {
    return base::FieldError("selection", "SELECTION_QUALITY_ONLY",
                            absl::StrCat("goes with mode QUALITY alone, got mode ", ridge::Name(out.mode)));
  }
  if (request.selection().has_share()) out.share = request.selection().share();
  RF_ASSIGN_OR_RETURN(out.selector, common::FromProto(request.selection().selector()));
  return absl::OkStatus();
}

absl::Status ParseSplit(const v1::GenerateRequest& request, ParsedRequest& out) {
  if (!request.has_split()) return absl::OkStatus();
  if (out.mode == ridge::Mode::kExact) {
    return base::FieldError("split", "SPLIT_FILLED_ONLY",
                            "goes with modes AUTO, SPEED and QUALITY, got EXACT");
  }
  out.split = request.split();
  if (out.split > 0) return absl::OkStatus();
  return base::FieldError("split", "SPLIT_RANGE", absl::StrCat("must be at least 1, got ", out.split));
}

std::vector<tokenizer::ChatMessage> Messages(const v1::ChatPrompt& chat) {
  std::vector<tokenizer::ChatMessage> messages;
  for (const auto& message : chat.messages()) messages.push_back({message.role(), message.content()});
  return messages;
}

// The tokenizer knows nothing of fields: its errors about input become errors about `field`.
template <typename T>
absl::StatusOr<T> About(absl::string_view field, absl::StatusOr<T> result) {
  if (result.ok() || result.status().code() != absl::StatusCode::kInvalidArgument) return result;
  const auto detail = base::GetErrorDetail(result.status());
  return base::FieldError(field, detail.has_value() ? detail->reason : "INVALID_INPUT",
                          result.status().message());
}

}  // namespace

absl::Status CheckIds(absl::string_view field, const google::protobuf::RepeatedField<int32_t>& ids,
                      int vocab_size) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return base::FieldError(absl::StrCat(field, "[", i, "]"), "TOKEN_ID_RANGE",
                            absl::StrCat("must be in [0, ", vocab_size - 1, "], got ", ids[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckModelName(const std::string& name, const RequestLimits& limits) {
  if (name.empty() || name == limits.model) return absl::OkStatus();
  return base::Error(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
                     absl::StrCat("no model of this name is served; there is: ", limits.model));
}

absl::StatusOr<ParsedRequest> CheckRequest(const v1::GenerateRequest& request, const RequestLimits& limits) {
  RF_RETURN_IF_ERROR(CheckModelName(request.model(), limits));
  RF_RETURN_IF_ERROR(CheckPrompt(request, limits));
  ParsedRequest out;
  RF_ASSIGN_OR_RETURN(out.mode, common::FromProto(request.mode()));
  out.sampling = common::FromProto(request.sampling());
  out.has_seed = request.sampling().has_seed();
  RF_RETURN_IF_ERROR(ParseStop(request.stop(), limits, out));
  RF_RETURN_IF_ERROR(ParseLogprobs(request.logprobs(), out));
  RF_RETURN_IF_ERROR(ParseSelection(request, out));
  RF_RETURN_IF_ERROR(ParseSplit(request, out));
  RF_RETURN_IF_ERROR(sampling::Validate(out.sampling, limits.vocab_size));
  // Invalid UTF-8 among the stop strings shows before the request takes a place.
  RF_RETURN_IF_ERROR(About("stop.stop_strings", tokenizer::StopMatcher::Create(out.stop_strings)).status());
  return out;
}

absl::StatusOr<std::vector<int32_t>> EncodePrompt(const v1::GenerateRequest& request,
                                                  const tokenizer::Tokenizer& tokenizer) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      return About("text", tokenizer.Encode(request.text()));
    case v1::GenerateRequest::kChat:
      return About("chat.messages", tokenizer.EncodeChat(Messages(request.chat())));
    default:
      return std::vector<int32_t>(request.tokens().ids().begin(), request.tokens().ids().end());
  }
}

absl::Status CheckInput(const v1::TokenizeRequest& request, const RequestLimits& limits) {
  RF_RETURN_IF_ERROR(CheckModelName(request.model(), limits));
  switch (request.input_case()) {
    case v1::TokenizeRequest::kText:
      return CheckBytes("text", static_cast<int64_t>(request.text().size()), limits);
    case v1::TokenizeRequest::kChat:
      return CheckChat("chat", request.chat(), limits);
    case v1::TokenizeRequest::INPUT_NOT_SET:
      break;
  }
  return base::FieldError("input", "INPUT_MISSING", "one of text or chat is required");
}

absl::StatusOr<std::vector<int32_t>> EncodeInput(const v1::TokenizeRequest& request,
                                                 const tokenizer::Tokenizer& tokenizer) {
  if (request.has_chat()) return About("chat.messages", tokenizer.EncodeChat(Messages(request.chat())));
  return About("text", tokenizer.Encode(request.text()));
}

absl::Status CheckInput(const v1::DetokenizeRequest& request, const RequestLimits& limits) {
  RF_RETURN_IF_ERROR(CheckModelName(request.model(), limits));
  if (request.ids_size() <= limits.max_prompt_bytes) return absl::OkStatus();
  return base::FieldError("ids", "TOO_MANY_IDS",
                          absl::StrCat("at most ", limits.max_prompt_bytes, ", got ", request.ids_size()));
}

absl::StatusOr<int64_t> AnswerTokens(const ParsedRequest& request, int64_t prompt_tokens,
                                     int64_t context_tokens) {
  const int64_t room = context_tokens - prompt_tokens;
  if (room < 1) {
    return base::FieldError(
        "prompt", "CONTEXT_LENGTH",
        absl::StrCat("the prompt has ", prompt_tokens, " tokens; with at least one of answer, ",
                     context_tokens, " are the limit"));
  }
  if (request.max_tokens > room) {
    return base::FieldError("stop.max_tokens", "CONTEXT_LENGTH",
                            absl::StrCat("prompt (", prompt_tokens, " tokens) and max_tokens (",
                                         request.max_tokens, ") exceed the context of ", context_tokens));
  }
  return request.max_tokens > 0 ? request.max_tokens : room;
}

}  // namespace ridgefill::router
