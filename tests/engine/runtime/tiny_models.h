// The tiny llama checkpoint on any backend, random maps for it, and plain forwards that know
// nothing of engines, splits, chunks or pieces: what the engines' answers are held against, bit for bit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "engine/ridge/device_maps.h"
#include "engine/runtime/decode_engine.h"
#include "engine/runtime/kv_frame.h"
#include "engine/sampling/sampler.h"

namespace ridgefill::runtime {

// A mixture's inputs are normalised, and those of one map of kNormalised.
enum class MapKind : uint8_t {
  kUnfolded,
  kPlain,
  kNormalised,
  kPreviousRow,
  kMixture,
  kMixtureAndPreviousRow
};
inline constexpr MapKind kFoldedKinds[] = {MapKind::kPlain, MapKind::kNormalised, MapKind::kPreviousRow,
                                           MapKind::kMixture, MapKind::kMixtureAndPreviousRow};

class TinyModel {
 public:
  // Layers [0, layer_end); -1: all and the head.
  explicit TinyModel(std::unique_ptr<kernels::Backend> backend = kernels::MakeReferenceBackend(),
                     int layer_end = -1);

  const model::Model& model() const { return *model_; }
  int layers() const { return model_->config().layers; }
  int vocab() const { return model_->config().vocab; }
  // Random maps for `split`, through a map set on disk; a mixture is one of three. A threshold that makes
  // some rows outliers.
  std::unique_ptr<ridge::DeviceMaps> RandomMaps(int split, float outlier_threshold = 0.0f,
                                                MapKind kind = MapKind::kMixtureAndPreviousRow) const;
  Hello MakeHello(const std::vector<MapSetIdentity>& maps = {}) const;

 private:
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<model::Model> model_;
};

std::vector<int32_t> RandomTokens(uint64_t seed, int64_t count, int vocab);

// An answer with everything that floating point can tell: log-probabilities of the 20 likeliest of each step.
struct Answer {
  std::vector<sampling::SampleResult> tokens;
  std::vector<float> prompt_logprobs;
};
// Equal in every bit.
void ExpectSame(const Answer& got, const Answer& want);

struct PlainFill {
  const ridge::DeviceMaps* maps = nullptr;
  ridge::FillPlan plan;
};
// One pass over all rows of all layers, then greedy decode alone. With `fill`: the method of docs/method.md
// section 1 on whole tensors.
Answer PlainAnswer(const TinyModel& tiny, const std::vector<int32_t>& tokens, int64_t max_tokens,
                   const PlainFill* fill = nullptr);
// ||h_S|| of every row.
std::vector<float> PlainRowNorms(const TinyModel& tiny, const std::vector<int32_t>& tokens, int split);
// The most attention that the rows from fill.plan.tail_begin on pay to each row in the layers from the split
// on, when they and the plan's outliers run there exactly and all other rows are filled.
std::vector<float> PlainProbe(const TinyModel& tiny, const std::vector<int32_t>& tokens,
                              const PlainFill& fill);
// The mean attention that the last 64 rows pay to each row in the four layers below the split.
std::vector<float> PlainScores(const TinyModel& tiny, const std::vector<int32_t>& tokens, int split);

}  // namespace ridgefill::runtime
