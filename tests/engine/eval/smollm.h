// SmolLM2-135M-Instruct for tests that need a real model. It is not in the repository: deploy/fetch_model.sh
// puts it under ${RIDGEFILL_HOME:-~/.cache/ridgefill}/models; without it a test skips and says so.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/base/model_identity.h"
#include "engine/fit/corpus.h"
#include "engine/model/model.h"
#include "engine/ridge/map_set.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/api/backend.h"

namespace ridgefill::testing_support {

std::string SmolLmPath();
bool SmolLmIsThere();

struct SmolLm {
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<model::Model> model;
  base::ModelIdentity identity;
};
// On the CPU backend, prompt forms only. Aborts when the file is there but does not load.
SmolLm LoadSmolLm();

// Documents of tests/data/corpus/<part> that tests/data/eval/windows_4096.json lists under `key`, in its
// order.
std::vector<fit::Document> ListedWindows(const tokenizer::Tokenizer& tokenizer, const std::string& part,
                                         const std::string& key);

// Makes a layer's map write every K as if its row stood `shift` positions further on: RoPE at p + shift is
// RoPE at p after a turn by shift positions, which a map can do itself.
void ShiftKeyPositions(const model::Model& model, int shift, ridge::LayerMap& map);

}  // namespace ridgefill::testing_support
