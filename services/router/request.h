// A client's request, checked field by field and turned into what the engines take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/ridge/fill_plan.h"
#include "engine/sampling/sampler.h"
#include "engine/tokenizer/tokenizer.h"
#include "ridgefill/v1/generation.pb.h"

namespace ridgefill::router {

inline constexpr int kMaxStopStrings = 16;
inline constexpr int kMaxStopStringBytes = 1024;
inline constexpr int kMaxStopIds = 64;

struct RequestLimits {
  std::string model;           // the one name that is served
  int vocab_size = 0;          // rows of the model's logits
  int64_t context_tokens = 0;  // prompt and answer together
  int64_t max_prompt_bytes = 16 << 20;
};

struct ParsedRequest {
  ridge::Mode mode = ridge::Mode::kAuto;
  sampling::SamplingParams sampling;  // seed not yet drawn when `has_seed` is false
  bool has_seed = false;
  int64_t max_tokens = 0;  // 0: what is left of the context
  std::vector<std::string> stop_strings;
  bool prompt_logprobs = false;
  std::optional<float> share;  // of QUALITY; its range is the policy's to check
  ridge::Selector selector = ridge::Selector::kAttention;
  int split = 0;  // 0: none named
};

// All that can be said without tokenizing; cheap. INVALID_ARGUMENT with the field's path as in the proto,
// NOT_FOUND (MODEL_NOT_FOUND).
absl::StatusOr<ParsedRequest> CheckRequest(const v1::GenerateRequest& request, const RequestLimits& limits);

// The prompt as token ids: chat template, tokenizer, or the ids as they came. Takes time linear in the
// prompt.
absl::StatusOr<std::vector<int32_t>> EncodePrompt(const v1::GenerateRequest& request,
                                                  const tokenizer::Tokenizer& tokenizer);

// The same for Tokenize, which has no CheckRequest of its own: cheap, and before EncodeInput.
absl::Status CheckInput(const v1::TokenizeRequest& request, const RequestLimits& limits);
absl::StatusOr<std::vector<int32_t>> EncodeInput(const v1::TokenizeRequest& request,
                                                 const tokenizer::Tokenizer& tokenizer);
// And for Detokenize, but for the ids' values.
absl::Status CheckInput(const v1::DetokenizeRequest& request, const RequestLimits& limits);

// INVALID_ARGUMENT about the first id outside [0, vocab_size).
absl::Status CheckIds(absl::string_view field, const google::protobuf::RepeatedField<int32_t>& ids,
                      int vocab_size);

// NOT_FOUND unless `name` is empty or the served model's.
absl::Status CheckModelName(const std::string& name, const RequestLimits& limits);

// Tokens that the answer may have. INVALID_ARGUMENT (CONTEXT_LENGTH) when prompt and answer do not fit.
absl::StatusOr<int64_t> AnswerTokens(const ParsedRequest& request, int64_t prompt_tokens,
                                     int64_t context_tokens);

}  // namespace ridgefill::router
