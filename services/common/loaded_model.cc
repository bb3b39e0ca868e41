#include "services/common/loaded_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "engine/base/log.h"
#include "engine/base/status.h"
#include "engine/ridge/map_tensors.h"
#include "services/common/memory.h"
#include "services/common/model_files.h"

namespace ridgefill::common {
namespace {

using MapSetList = std::vector<std::unique_ptr<ridge::MapSet>>;

int64_t BlockBytes(const model::ModelConfig& config) {
  kernels::KvCacheSpec spec{config.layers, 1, config.heads_kv, config.head_dim};
  return spec.total_bytes();
}

int64_t BlocksFor(int64_t tokens) { return (tokens + kernels::kBlockTokens - 1) / kernels::kBlockTokens; }

// Bytes of one packed parameter, before anything is loaded: 16 bits everywhere but on the oracle.
int64_t ParameterBytes(absl::string_view backend) { return backend == "reference" ? 4 : 2; }

absl::Status CheckMemory(const LoadModelOptions& options, const model::ModelConfig& config, int layers,
                         const MapSetList& maps) {
  MemoryNeed need;
  const bool all = layers == config.layers;
  need.parts.emplace_back("weights",
                          WeightBytes(config, layers, all, ParameterBytes(options.backend.kind())));
  const int64_t context = options.context_tokens > 0 ? options.context_tokens : config.context;
  need.parts.emplace_back(
      "KV cache",
      (options.kv_memory_mb << 20) + options.kv_cache_contexts * BlocksFor(context) * BlockBytes(config));
  if (!maps.empty()) {
    // QUALITY keeps h_S of every prompt that the prefill engine's cache holds, wire form `hidden` of every
    // one that the decode engine's cache does.
    const int64_t rows_kept = BlocksInMemory(config, options.kv_memory_mb) * kernels::kBlockTokens +
                              options.kv_cache_contexts * context;
    need.parts.emplace_back("rows that filled modes keep", rows_kept * config.hidden * 4);
  }
  for (const auto& set : maps) {
    need.parts.emplace_back(absl::StrCat("maps of split ", set->manifest().split),
                            MapParameters(set->manifest()) * ParameterBytes(options.backend.kind()));
  }
  return CheckFits(need, AvailableMemory());
}

absl::Status CheckLowerLayersOnly(const MapSetList& maps) {
  if (maps.empty()) {
    return base::Error(absl::StatusCode::kFailedPrecondition, "NO_MAPS",
                       "lower_layers_only needs a map set: its split says which layers are the lower ones");
  }
  if (std::all_of(maps.begin(), maps.end(), [](const auto& set) { return set->manifest().folded; })) {
    return absl::OkStatus();
  }
  return base::Error(
      absl::StatusCode::kFailedPrecondition, "MAPS_UNFOLDED",
      "lower_layers_only needs folded map sets: what an unfolded map gives goes through the "
      "late layer's own projections; fit a folded set with `ridgefill fit`, or load all layers "
      "(lower_layers_only false)");
}

runtime::Hello MakeHello(const base::ModelIdentity& identity, const MapSetList& maps,
                         const model::ModelConfig& config) {
  runtime::Hello hello;
  hello.model = identity;
  for (const auto& set : maps) hello.maps.push_back({set->manifest().split, set->manifest().digest});
  hello.cache_layout = absl::StrFormat("bf16[%d, %d, %d] x %d", kernels::kBlockTokens, config.heads_kv,
                                       config.head_dim, config.layers);
  return hello;
}

void LogLoaded(const LoadedModel& loaded, absl::Duration took) {
  const auto& capabilities = loaded.backend->capabilities();
  base::Log(base::Severity::kInfo, "model_loaded",
            {{"model", loaded.name},
             {"dimensions", loaded.hello.model.dimensions},
             {"layers_loaded", int64_t{loaded.model->loaded_layers()}},
             {"weight_bytes", loaded.model->weight_bytes()},
             {"splits", ridge::SplitNames(loaded.map_sets())},
             {"backend", capabilities.name},
             {"isa", capabilities.isa},
             {"threads", int64_t{capabilities.threads}},
             {"seconds", absl::ToDoubleSeconds(took)}});
}

}  // namespace

absl::StatusOr<OpenedModel> OpenModel(const std::string& home, const config::v1::ModelSourceConfig& source) {
  OpenedModel out;
  RF_ASSIGN_OR_RETURN(const std::string path, FindModel(home, source.model()));
  out.name = ModelName(path);
  RF_ASSIGN_OR_RETURN(out.source, model::WeightSource::Open(path));
  auto tokenizer = out.source->gguf() != nullptr ? tokenizer::Tokenizer::FromGguf(*out.source->gguf())
                                                 : tokenizer::Tokenizer::FromHuggingFace(path);
  if (!tokenizer.ok()) return base::WithContext(tokenizer.status(), path);
  out.tokenizer = *std::move(tokenizer);
  out.identity = model::MakeIdentity(out.name, out.source->config(), out.tokenizer->digest(),
                                     out.source->weights_digest());
  return out;
}

absl::StatusOr<std::unique_ptr<ridge::MapSet>> LoadMapSet(const std::string& home, const std::string& name,
                                                          const base::ModelIdentity& model) {
  RF_ASSIGN_OR_RETURN(const std::string folder, FindMaps(home, model.name, name));
  if (folder.empty()) return nullptr;
  RF_ASSIGN_OR_RETURN(auto maps, ridge::MapSet::Load(folder));
  std::string warning;
  RF_RETURN_IF_ERROR(
      base::WithContext(ridge::CheckCompatible(maps->manifest(), model, -1, &warning), folder));
  if (!warning.empty()) {
    base::Log(base::Severity::kWarning, "maps_differ", {{"maps", folder}, {"warning", warning}});
  }
  return maps;
}

namespace {

absl::StatusOr<MapSetList> LoadMapSets(const LoadModelOptions& options, const base::ModelIdentity& model) {
  std::vector<std::string> names(options.source.maps().begin(), options.source.maps().end());
  if (names.empty()) names.emplace_back();
  MapSetList sets;
  for (const std::string& name : names) {
    const bool none = name.empty() || name == "none";
    if (none && names.size() > 1) {
      return base::FieldError("source.maps", "MAPS_NONE_AMONG_OTHERS",
                              absl::StrCat("\"", name, "\" goes alone, there are ", names.size(), " names"));
    }
    RF_ASSIGN_OR_RETURN(auto set, LoadMapSet(options.home, name, model));
    if (set == nullptr) continue;
    for (const auto& other : sets) {
      if (other->manifest().split != set->manifest().split) continue;
      return base::FieldError("source.maps", "MAPS_SAME_SPLIT",
                              absl::StrCat("\"", name, "\" is of split ", set->manifest().split,
                                           " as one before it; a worker takes one map set of each split"));
    }
    sets.push_back(std::move(set));
  }
  return sets;
}

// The split layer is one of the lower ones: its own projections give its K and V of the bulk.
int LowerLayers(const MapSetList& maps) {
  int layers = 0;
  for (const auto& set : maps) layers = std::max(layers, set->manifest().split + 1);
  return layers;
}

}  // namespace

std::vector<const ridge::DeviceMaps*> LoadedModel::map_sets() const {
  std::vector<const ridge::DeviceMaps*> sets;
  sets.reserve(maps.size());
  for (const auto& set : maps) sets.push_back(set.get());
  return sets;
}

absl::StatusOr<LoadedModel> LoadModel(const LoadModelOptions& options) {
  const absl::Time start = absl::Now();
  RF_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(options.home, options.source));
  const model::ModelConfig& config = opened.source->config();
  LoadedModel out;
  out.name = opened.name;
  RF_ASSIGN_OR_RETURN(const MapSetList map_sets, LoadMapSets(options, opened.identity));
  if (options.lower_layers_only) RF_RETURN_IF_ERROR(CheckLowerLayersOnly(map_sets));
  const int layers = options.lower_layers_only ? LowerLayers(map_sets) : config.layers;
  RF_RETURN_IF_ERROR(CheckMemory(options, config, layers, map_sets));
  RF_ASSIGN_OR_RETURN(out.backend, MakeBackend(options.backend));
  model::LoadOptions load;
  load.layer_end = options.lower_layers_only ? layers : -1;
  load.for_prompt = options.for_prompt;
  load.for_decode = options.for_decode;
  RF_ASSIGN_OR_RETURN(out.model, model::Model::Load(*opened.source, *out.backend, load));
  for (const auto& set : map_sets) {
    RF_ASSIGN_OR_RETURN(auto maps, ridge::DeviceMaps::Load(*set, *out.backend));
    out.maps.push_back(std::move(maps));
  }
  out.hello = MakeHello(opened.identity, map_sets, config);
  out.context_tokens = options.context_tokens > 0 ? options.context_tokens : config.context;
  out.tokenizer = std::move(opened.tokenizer);
  LogLoaded(out, absl::Now() - start);
  return out;
}

absl::StatusOr<std::unique_ptr<kernels::Backend>> MakeBackend(const config::v1::BackendConfig& config) {
  if (config.kind() == "reference") return kernels::MakeReferenceBackend();
  if (config.kind() == "cuda") {
    kernels::CudaOptions options;
    options.device = config.device();
    return kernels::MakeCudaBackend(options);
  }
  kernels::CpuOptions options;
  options.threads = config.threads();
  options.isa = config.isa();
  return kernels::MakeCpuBackend(options);
}

int64_t MapParameters(const ridge::MapSetManifest& manifest) {
  const int64_t layer = ridge::MapRows(manifest) * manifest.mixture * (ridge::MapInputs(manifest) + 1);
  const int64_t gate = manifest.mixture > 1 ? int64_t{manifest.mixture} * (manifest.hidden + 1) : 0;
  return layer * (manifest.layers - manifest.split - 1) + gate;
}

absl::Status CheckMapsFit(const std::vector<ridge::MapSetManifest>& sets, const kernels::Backend& backend,
                          int64_t available) {
  MemoryNeed need;
  for (const ridge::MapSetManifest& manifest : sets) {
    need.parts.emplace_back(absl::StrCat("split ", manifest.split),
                            MapParameters(manifest) * ParameterBytes(backend.capabilities().name));
  }
  need.what = "all map sets beside each other";
  need.advice = "take fewer splits, or sets of a smaller mixture";
  return CheckFits(need, available);
}

int64_t BlocksInMemory(const model::ModelConfig& config, int64_t mb) {
  return (mb << 20) / std::max<int64_t>(1, BlockBytes(config));
}

absl::Status CheckKvMemory(const LoadedModel& model, int64_t mb) {
  const model::ModelConfig& config = model.model->config();
  const int64_t blocks = BlocksInMemory(config, mb), needed = BlocksFor(model.context_tokens);
  if (blocks >= needed) return absl::OkStatus();
  const int64_t needed_mb = (needed * BlockBytes(config) + (1 << 20) - 1) >> 20;
  return base::Error(
      absl::StatusCode::kResourceExhausted, "KV_MEMORY",
      absl::StrCat("kv_memory_mb ", mb, " holds ", blocks, " blocks of ", kernels::kBlockTokens,
                   " tokens, but one request of context_tokens ", model.context_tokens, " needs ", needed,
                   " (", needed_mb, " MB); raise kv_memory_mb or lower context_tokens"));
}

}  // namespace ridgefill::common
