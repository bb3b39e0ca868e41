// A model ready to serve: found, checked against the memory there is, loaded and packed on one backend, with
// its tokenizer and map set. What the prefill and decode programs, `ridgefill serve` and `ridgefill bench`
// start with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/ridge/device_maps.h"
#include "engine/ridge/map_set.h"
#include "engine/runtime/kv_frame.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/api/backend.h"
#include "ridgefill/config/v1/config.pb.h"

namespace ridgefill::common {

// A model's files, opened but not loaded: all that a router needs. `source` is borrowed by nothing else.
struct OpenedModel {
  std::string name;
  std::unique_ptr<model::WeightSource> source;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  base::ModelIdentity identity;
};
absl::StatusOr<OpenedModel> OpenModel(const std::string& home, const config::v1::ModelSourceConfig& source);

struct LoadModelOptions {
  std::string home;  // HomeFolder()
  config::v1::ModelSourceConfig source;
  config::v1::BackendConfig backend;
  bool lower_layers_only = false;  // needs map sets, folded ones
  bool for_prompt = true;
  bool for_decode = true;
  int64_t context_tokens = 0;  // 0: the model's
  int64_t kv_memory_mb = 0;    // of all KV caches ...
  int kv_cache_contexts = 0;   // ... plus room for so many prompts of `context_tokens`
};

// Destroyed in reverse order: maps and model before their backend.
struct LoadedModel {
  std::string name;
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<model::Model> model;
  std::vector<std::unique_ptr<ridge::DeviceMaps>> maps;  // of different splits, the default one first
  runtime::Hello hello;
  int64_t context_tokens = 0;

  std::vector<const ridge::DeviceMaps*> map_sets() const;
};

// The map set of this name (FindMaps), checked against the model; null for none.
absl::StatusOr<std::unique_ptr<ridge::MapSet>> LoadMapSet(const std::string& home, const std::string& name,
                                                          const base::ModelIdentity& model);

// MODEL_NOT_FOUND, MAPS_NOT_FOUND, MAPS_SAME_SPLIT, MAPS_NONE_AMONG_OTHERS, NO_MAPS, MAPS_UNFOLDED,
// MODEL_DOES_NOT_FIT, and what the loaders refuse. Logs one line with what was loaded.
absl::StatusOr<LoadedModel> LoadModel(const LoadModelOptions& options);

absl::StatusOr<std::unique_ptr<kernels::Backend>> MakeBackend(const config::v1::BackendConfig& config);

// Of a loaded set: all maps, their biases and the gate.
int64_t MapParameters(const ridge::MapSetManifest& manifest);
// RESOURCE_EXHAUSTED (MODEL_DOES_NOT_FIT) when several sets, all loaded beside a model that is loaded
// already, take more than is `available` (memory.h).
absl::Status CheckMapsFit(const std::vector<ridge::MapSetManifest>& sets, const kernels::Backend& backend,
                          int64_t available);

// Blocks that fit into so many MB, over all layers.
int64_t BlocksInMemory(const model::ModelConfig& config, int64_t mb);
// RESOURCE_EXHAUSTED (KV_MEMORY) with the arithmetic when they do not hold one request of the whole context.
absl::Status CheckKvMemory(const LoadedModel& model, int64_t mb);

}  // namespace ridgefill::common
