// Random requests with the answers that they must give, alone or in any company.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "engine/base/rng.h"
#include "engine/ridge/fill_plan.h"
#include "engine/ridge/selection.h"
#include "tests/engine/runtime/collector.h"
#include "tests/engine/runtime/tiny_models.h"

namespace ridgefill::runtime {

// The plan that the norms of the lower layers, and what the decision's selector looks at, give.
inline ridge::FillPlan PlanFor(const TinyModel& tiny, const std::vector<int32_t>& tokens,
                               const ridge::FillDecision& decision, const ridge::DeviceMaps& maps) {
  const std::vector<float> norms = PlainRowNorms(tiny, tokens, decision.split);
  const int64_t count = static_cast<int64_t>(tokens.size());
  std::vector<int32_t> outliers;
  for (int64_t i = 0; i < count; ++i) {
    if (ridge::IsOutlier(i, norms[i], maps.manifest().outlier_threshold)) {
      outliers.push_back(static_cast<int32_t>(i));
    }
  }
  std::vector<float> scores;
  if (ridge::NeedsProbe(decision) && ridge::TailBegin(decision, count) > 0) {
    // A prompt whose tail are the probe's rows.
    ridge::FillDecision probe = decision;
    probe.tail = static_cast<int>(count - ridge::ProbeBegin(decision, count));
    scores = PlainProbe(tiny, tokens, {&maps, ridge::MakeFillPlan(probe, count, outliers, {})});
  }
  if (ridge::NeedsAttentionScores(decision)) scores = PlainScores(tiny, tokens, decision.split);
  return ridge::MakeFillPlan(decision, count, outliers,
                             ridge::SelectRows(decision, tokens, scores, outliers));
}

struct Load {
  DecodeCall call;
  Answer alone;
  Submitted submitted;
};

inline std::vector<Load> RandomLoad(uint64_t seed, int count, const ridge::DeviceMaps& maps,
                                    const TinyModel& tiny, int64_t longest_answer) {
  base::Rng rng(seed);
  std::vector<Load> loads(count);
  const int split = maps.manifest().split;
  for (int i = 0; i < count; ++i) {
    const auto tokens =
        RandomTokens(seed * 1000 + i, 1 + static_cast<int64_t>(rng.NextBelow(120)), tiny.vocab());
    const ridge::FillDecision routes[] = {Local(),
                                          ExactOnDecode(split),
                                          ExactOnPrefill(),
                                          Speed(split, 16),
                                          Quality(split, 16, 0.5f),
                                          Hidden(Speed(split, 16)),
                                          Hidden(Quality(split, 16, 0.5f)),
                                          Hidden(Quality(split, 16, 0.5f, ridge::Selector::kProbe))};
    const ridge::FillDecision& decision = routes[rng.NextBelow(8)];
    loads[i].call = GreedyCall(tokens, decision, 1 + static_cast<int64_t>(rng.NextBelow(longest_answer)));
    const PlainFill fill{&maps, decision.mode != ridge::Mode::kExact ? PlanFor(tiny, tokens, decision, maps)
                                                                     : ridge::FillPlan()};
    const bool filled = fill.plan.tail_begin > 0;
    loads[i].alone = PlainAnswer(tiny, tokens, loads[i].call.max_tokens, filled ? &fill : nullptr);
    loads[i].alone.prompt_logprobs.clear();
  }
  return loads;
}

}  // namespace ridgefill::runtime
