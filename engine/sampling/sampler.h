// Logits to one token.
//
// Order of operations, each on what the one before left:
//   1. logprobs are taken from the untouched logits (log-softmax);
//   2. repetition penalty (prompt and generated tokens: positive logits divided, negative multiplied), then
//   frequency and
//      presence penalty (generated tokens only: subtracted);
//   3. logit bias is added;
//   4. while fewer than min_tokens are generated, stop ids cannot be chosen;
//   5. temperature 0: the highest logit, ties to the lowest id, and nothing below applies; else divide by it;
//   6. top_k: the k most likely; 7. top_p: of these, renormalised, the fewest whose mass reaches top_p;
//   8. min_p: of these, those at least min_p times as likely as the most likely (ties at any cut: the lower
//   id stays);
//   9. one draw from what is left.
// The draw depends on seed and position in the answer only, so batching, preemption and retries do not change
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ridgefill::sampling {

inline constexpr int kMaxLogprobs = 20;
inline constexpr int kMaxLogitBias = 1024;

struct SamplingParams {
  float temperature = 1;                              // 0: greedy; [0, 100]
  int top_k = 0;                                      // 0: off
  float top_p = 1;                                    // (0, 1]; 1: off
  float min_p = 0;                                    // [0, 1]; 0: off
  float repetition_penalty = 1;                       // (0, 10]; 1: off
  float presence_penalty = 0;                         // [-2, 2]
  float frequency_penalty = 0;                        // [-2, 2]
  std::vector<std::pair<int32_t, float>> logit_bias;  // token id, [-100, 100]
  std::vector<int32_t> stop_ids;                      // end the answer, beside the model's own end ids
  bool ignore_eos = false;  // the model's own end ids do not end the answer (stop_ids still do)
  int min_tokens = 0;       // no end id before this many tokens
  uint64_t seed = 0;
  std::optional<int> logprobs;  // unset: none; 0: the chosen token's; n <= 20: and the n most likely
};

// OK, or INVALID_ARGUMENT about the first bad field, `sampling.<field>`, with the allowed range. NaN is
// refused.
absl::Status Validate(const SamplingParams& params, int vocab_size);

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct SampleResult {
  int32_t token = 0;
  float logprob = 0;                       // of `token`; 0 unless SamplingParams.logprobs is set
  std::vector<TokenLogprob> top_logprobs;  // most likely first, ties to the lower id
  bool is_stop = false;  // an end id: the answer is over and this token is not part of its text
};

// What a sampler must know of its request; only read by the constructor.
struct SamplerContext {
  int vocab_size = 0;                // rows of logits
  absl::Span<const int32_t> prompt;  // for the repetition penalty; ids in [0, vocab_size)
  absl::Span<const int32_t>
      eos_ids;  // the model's end ids (Tokenizer::stop_ids); ids beyond vocab_size are dropped
  absl::Span<const int32_t> generated;  // tokens that the answer already has (a request that moved here)
};

// One per request; not thread-safe. `params` must have passed Validate.
class Sampler {
 public:
  Sampler(SamplingParams params, const SamplerContext& context);

  // Chooses the next token and counts it. `logits`: [vocab_size], finite, changed in place. INTERNAL with
  // reason LOGITS_NOT_FINITE when one is NaN or infinite; the sampler's state is then as before.
  absl::StatusOr<SampleResult> Sample(absl::Span<float> logits);
  // Counts a token that was not sampled here (teacher forcing).
  void Accept(int32_t token);

  // Ends the answer, given as many tokens as are counted now.
  bool IsStop(int32_t token) const;
  int generated() const { return generated_; }
  const SamplingParams& params() const { return params_; }

 private:
  void ApplyPenalties(absl::Span<float> logits) const;
  void MaskStops(absl::Span<float> logits) const;
  int32_t Draw(absl::Span<const float> logits) const;

  SamplingParams params_;
  int vocab_size_;
  std::vector<int32_t> all_stops_;  // eos (unless ignored) and stop ids: ascending, unique
  absl::flat_hash_set<int32_t> prompt_tokens_;
  absl::flat_hash_map<int32_t, int> counts_;  // generated token -> times
  int generated_ = 0;
};

// Logprob of `token` and the `top` most likely ones under `logits` [vocab]; also for prompt logprobs.
// LOGITS_NOT_FINITE as above.
struct Logprobs {
  float logprob = 0;
  std::vector<TokenLogprob> top;
};
absl::StatusOr<Logprobs> ComputeLogprobs(absl::Span<const float> logits, int32_t token, int top);

}  // namespace ridgefill::sampling
