// Packs a source's weights for a backend. Internal to engine/model.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/blocks.h"
#include "engine/model/model.h"
#include "engine/model/weight_source.h"

namespace ridgefill::model {

struct ModelWeights {
  kernels::Tensor embedding;  // [vocab, d], f32 where activations are f32, else bf16
  std::vector<LayerWeights> layers;
  kernels::Tensor final_norm;                   // f32 [d], with the head only
  std::unique_ptr<kernels::PackedLinear> head;  // [vocab, d], null without the head
  int64_t bytes = 0;
};

// Rows are widened to f32 as the backend asks for them; no whole tensor is ever held in f32.
absl::StatusOr<ModelWeights> LoadWeights(const WeightSource& source, kernels::Backend& backend,
                                         const LoadOptions& options);

}  // namespace ridgefill::model
