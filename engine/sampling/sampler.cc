#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/rng.h"
#include "engine/base/status.h"

namespace ridgefill::sampling {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// More likely first, ties to the lower id: a total order, so that every cut is well defined.
class MoreLikely {
 public:
  explicit MoreLikely(absl::Span<const float> logits) : logits_(logits) {}
  bool operator()(int32_t a, int32_t b) const {
    return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
  }

 private:
  absl::Span<const float> logits_;
};

absl::Status CheckFinite(absl::Span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) continue;
    return base::Error(absl::StatusCode::kInternal, "LOGITS_NOT_FINITE",
                       absl::StrCat("the logit of token ", i, " is ", logits[i]),
                       {{"token", absl::StrCat(i)}});
  }
  return absl::OkStatus();
}

int32_t ArgMax(absl::Span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// The `count` most likely of `ids`, in order.
void KeepMostLikely(absl::Span<const float> logits, size_t count, std::vector<int32_t>& ids) {
  const MoreLikely order(logits);
  if (count < ids.size()) {
    std::nth_element(ids.begin(), ids.begin() + count, ids.end(), order);
    ids.resize(count);
  }
  std::sort(ids.begin(), ids.end(), order);
}

// Everything that can be chosen, in ascending order.
std::vector<int32_t> Candidates(absl::Span<const float> logits) {
  std::vector<int32_t> ids;
  ids.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] != kNever) ids.push_back(static_cast<int32_t>(i));
  }
  return ids;
}

// exp((logit - max) / temperature) of each id, in double: no temperature overflows it.
std::vector<double> Weights(absl::Span<const float> logits, const std::vector<int32_t>& ids,
                            double temperature) {
  double max = kNever;
  for (int32_t id : ids) max = std::max<double>(max, logits[id]);
  std::vector<double> weights;
  weights.reserve(ids.size());
  for (int32_t id : ids) weights.push_back(std::exp((logits[id] - max) / temperature));
  return weights;
}

// Sorts the front of `ids` only as far as its mass needs to reach top_p, and cuts there.
void KeepTopP(absl::Span<const float> logits, double temperature, double top_p, std::vector<int32_t>& ids) {
  const std::vector<double> all = Weights(logits, ids, temperature);
  const double needed = top_p * std::accumulate(all.begin(), all.end(), 0.0);
  const MoreLikely order(logits);
  double mass = 0, max = 0;
  size_t sorted = 0;
  for (size_t kept = 0; kept < ids.size(); ++kept) {
    if (kept == sorted) {
      sorted = std::min(ids.size(), std::max<size_t>(256, sorted * 8));
      std::partial_sort(ids.begin() + kept, ids.begin() + sorted, ids.end(), order);
      if (kept == 0) max = logits[ids[0]];
    }
    mass += std::exp((logits[ids[kept]] - max) / temperature);
    if (mass >= needed) {
      ids.resize(kept + 1);
      return;
    }
  }
}

void KeepMinP(absl::Span<const float> logits, double temperature, double min_p, std::vector<int32_t>& ids) {
  const std::vector<double> weights = Weights(logits, ids, temperature);  // the most likely has weight 1
  size_t kept = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (weights[i] >= min_p) ids[kept++] = ids[i];
  }
  ids.resize(kept);
}

// Uniform in [0, 1), a pure function of seed and position.
double Uniform(uint64_t seed, uint64_t position) {
  return base::Rng(base::Rng(seed).NextU64() ^ base::Rng(~position).NextU64()).NextDouble();
}

absl::Status OutOfRange(absl::string_view field, absl::string_view reason, absl::string_view allowed,
                        double got) {
  return base::FieldError(absl::StrCat("sampling.", field), reason,
                          absl::StrCat("must be ", allowed, ", got ", got));
}

// One number with its range; NaN is in none.
struct Range {
  absl::string_view field, reason, allowed;
  double value;
  bool ok;
};

absl::Status ValidateNumbers(const SamplingParams& p) {
  const auto within = [](double value, double low, double high) { return value >= low && value <= high; };
  const Range ranges[] = {
      {"temperature", "TEMPERATURE_RANGE", "in [0, 100]", p.temperature, within(p.temperature, 0, 100)},
      {"top_k", "TOP_K_RANGE", "at least 0 (0: off)", static_cast<double>(p.top_k), p.top_k >= 0},
      {"top_p", "TOP_P_RANGE", "in (0, 1]", p.top_p, p.top_p > 0 && p.top_p <= 1},
      {"min_p", "MIN_P_RANGE", "in [0, 1]", p.min_p, within(p.min_p, 0, 1)},
      {"repetition_penalty", "REPETITION_PENALTY_RANGE", "in [0.01, 10]", p.repetition_penalty,
       within(p.repetition_penalty, 0.01f, 10)},
      {"presence_penalty", "PRESENCE_PENALTY_RANGE", "in [-2, 2]", p.presence_penalty,
       within(p.presence_penalty, -2, 2)},
      {"frequency_penalty", "FREQUENCY_PENALTY_RANGE", "in [-2, 2]", p.frequency_penalty,
       within(p.frequency_penalty, -2, 2)},
      {"min_tokens", "MIN_TOKENS_RANGE", "at least 0", static_cast<double>(p.min_tokens), p.min_tokens >= 0},
      {"logprobs", "LOGPROBS_RANGE", "in [0, 20]", static_cast<double>(p.logprobs.value_or(0)),
       within(p.logprobs.value_or(0), 0, kMaxLogprobs)},
  };
  for (const Range& range : ranges) {
    if (!range.ok) return OutOfRange(range.field, range.reason, range.allowed, range.value);
  }
  return absl::OkStatus();
}

absl::Status ValidateTokens(const SamplingParams& params, int vocab_size) {
  const std::string allowed = absl::StrCat("a token id in [0, ", vocab_size, ")");
  const auto bad = [&](int32_t id) { return id < 0 || id >= vocab_size; };
  if (params.logit_bias.size() > kMaxLogitBias) {
    return OutOfRange("logit_bias", "LOGIT_BIAS_COUNT", absl::StrCat("at most ", kMaxLogitBias, " entries"),
                      params.logit_bias.size());
  }
  absl::flat_hash_set<int32_t> seen;
  for (const auto& [id, bias] : params.logit_bias) {
    if (bad(id)) return OutOfRange("logit_bias", "TOKEN_ID_RANGE", allowed, id);
    if (!seen.insert(id).second)
      return OutOfRange("logit_bias", "LOGIT_BIAS_DUPLICATE", "one entry for a token", id);
    if (!(bias >= -100 && bias <= 100))
      return OutOfRange("logit_bias", "LOGIT_BIAS_RANGE", "in [-100, 100]", bias);
  }
  for (int32_t id : params.stop_ids) {
    if (bad(id)) return OutOfRange("stop_ids", "TOKEN_ID_RANGE", allowed, id);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const SamplingParams& params, int vocab_size) {
  RF_RETURN_IF_ERROR(ValidateNumbers(params));
  return ValidateTokens(params, vocab_size);
}

Sampler::Sampler(SamplingParams params, const SamplerContext& context)
    : params_(std::move(params)), vocab_size_(context.vocab_size) {
  RF_CHECK(vocab_size_ > 0);
  all_stops_ = params_.stop_ids;
  if (!params_.ignore_eos)
    all_stops_.insert(all_stops_.end(), context.eos_ids.begin(), context.eos_ids.end());
  std::sort(all_stops_.begin(), all_stops_.end());
  all_stops_.erase(std::unique(all_stops_.begin(), all_stops_.end()), all_stops_.end());
  const auto known = [this](int32_t id) { return id >= 0 && id < vocab_size_; };
  all_stops_.erase(std::partition(all_stops_.begin(), all_stops_.end(), known), all_stops_.end());
  std::sort(all_stops_.begin(), all_stops_.end());
  if (params_.repetition_penalty != 1) {
    for (int32_t id : context.prompt) {
      RF_CHECK(known(id));
      prompt_tokens_.insert(id);
    }
  }
  for (int32_t id : context.generated) Accept(id);
}

void Sampler::Accept(int32_t token) {
  RF_CHECK(token >= 0 && token < vocab_size_);
  ++counts_[token];
  ++generated_;
}

bool Sampler::IsStop(int32_t token) const {
  return generated_ >= params_.min_tokens && std::binary_search(all_stops_.begin(), all_stops_.end(), token);
}

void Sampler::ApplyPenalties(absl::Span<float> logits) const {
  if (params_.repetition_penalty != 1) {
    const auto repeat = [&](int32_t id) {
      logits[id] =
          logits[id] > 0 ? logits[id] / params_.repetition_penalty : logits[id] * params_.repetition_penalty;
    };
    for (int32_t id : prompt_tokens_) repeat(id);
    for (const auto& [id, count] : counts_) {
      if (!prompt_tokens_.contains(id)) repeat(id);
    }
  }
  for (const auto& [id, count] : counts_) {
    logits[id] -= params_.frequency_penalty * static_cast<float>(count) + params_.presence_penalty;
  }
  for (const auto& [id, bias] : params_.logit_bias) logits[id] += bias;
  // A penalty can push a huge logit over the edge; infinity means "never" from here on.
  constexpr float kMax = std::numeric_limits<float>::max();
  for (float& logit : logits) logit = std::clamp(logit, -kMax, kMax);
}

void Sampler::MaskStops(absl::Span<float> logits) const {
  // With every token an end token there is nothing else to choose.
  if (generated_ >= params_.min_tokens || all_stops_.size() == logits.size()) return;
  for (int32_t id : all_stops_) logits[id] = kNever;
}

int32_t Sampler::Draw(absl::Span<const float> logits) const {
  std::vector<int32_t> ids = Candidates(logits);
  const double temperature = params_.temperature;
  if (params_.top_k > 0) KeepMostLikely(logits, params_.top_k, ids);
  if (params_.top_p < 1) KeepTopP(logits, temperature, params_.top_p, ids);
  if (params_.min_p > 0) KeepMinP(logits, temperature, params_.min_p, ids);
  const std::vector<double> weights = Weights(logits, ids, temperature);
  const double target =
      Uniform(params_.seed, generated_) * std::accumulate(weights.begin(), weights.end(), 0.0);
  double mass = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    mass += weights[i];
    if (target < mass) return ids[i];
  }
  // Rounding can leave the sum just under the target: the last that has any weight.
  for (size_t i = ids.size(); i > 0; --i) {
    if (weights[i - 1] > 0) return ids[i - 1];
  }
  return ids[0];
}

absl::StatusOr<SampleResult> Sampler::Sample(absl::Span<float> logits) {
  RF_CHECK(logits.size() == static_cast<size_t>(vocab_size_));
  RF_RETURN_IF_ERROR(CheckFinite(logits));
  std::vector<float> raw;
  if (params_.logprobs.has_value()) raw.assign(logits.begin(), logits.end());
  ApplyPenalties(logits);
  MaskStops(logits);
  SampleResult result;
  result.token = params_.temperature == 0 ? ArgMax(logits) : Draw(logits);
  if (params_.logprobs.has_value()) {
    RF_ASSIGN_OR_RETURN(Logprobs logprobs, ComputeLogprobs(raw, result.token, *params_.logprobs));
    result.logprob = logprobs.logprob;
    result.top_logprobs = std::move(logprobs.top);
  }
  result.is_stop = IsStop(result.token);
  Accept(result.token);
  return result;
}

absl::StatusOr<Logprobs> ComputeLogprobs(absl::Span<const float> logits, int32_t token, int top) {
  RF_CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  RF_RETURN_IF_ERROR(CheckFinite(logits));
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - max);
  // Not max + log(sum): beside a huge logit the logarithm would be lost.
  const auto logprob = [&](int32_t id) { return static_cast<float>((logits[id] - max) - std::log(sum)); };
  Logprobs result;
  result.logprob = logprob(token);
  if (top <= 0) return result;
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  KeepMostLikely(logits, top, ids);
  for (int32_t id : ids) result.top.push_back({id, logprob(id)});
  return result;
}

}  // namespace ridgefill::sampling
