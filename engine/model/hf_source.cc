#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/base/status.h"
#include "engine/model/file_source.h"

namespace ridgefill::model {
namespace {

// Stored by some checkpoints and computed by us: old rotary buffers, and a tied head's second copy.
bool IsRedundant(const ModelConfig& config, absl::string_view tensor) {
  return absl::EndsWith(tensor, ".rotary_emb.inv_freq") || (config.tied_head && tensor == "lm_head.weight");
}

absl::Status AddTensors(const ArchSpec& arch, const formats::SafetensorsSet& set, FileSource& source) {
  absl::flat_hash_set<std::string> known;
  for (const TensorSpec& spec : arch.tensors(source.config())) {
    known.insert(spec.hf_name);
    if (spec.optional && !set.HasTensor(spec.hf_name)) continue;
    RF_ASSIGN_OR_RETURN(const formats::TensorBytes stored, set.Tensor(spec.hf_name));
    RF_RETURN_IF_ERROR(source.Add(spec, stored, /*rope_heads=*/0));
  }
  for (const std::string& name : set.names()) {
    if (!known.contains(name) && !IsRedundant(source.config(), name))
      return UnexpectedTensor(arch.name, name);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WeightSource>> Open(const std::string& folder) {
  RF_ASSIGN_OR_RETURN(const std::string text, base::ReadFile(absl::StrCat(folder, "/config.json")));
  RF_ASSIGN_OR_RETURN(const formats::Json json, formats::ParseJson(text));
  RF_ASSIGN_OR_RETURN(const absl::string_view arch_name, formats::GetString(json, "model_type"));
  RF_ASSIGN_OR_RETURN(const ArchSpec* arch, FindArch(arch_name));
  RF_ASSIGN_OR_RETURN(ModelConfig config, arch->from_hf(json));
  RF_ASSIGN_OR_RETURN(formats::SafetensorsSet opened, formats::SafetensorsSet::OpenFolder(folder));
  auto set = std::make_unique<formats::SafetensorsSet>(std::move(opened));
  auto source = std::make_unique<FileSource>(folder, std::move(config));
  RF_RETURN_IF_ERROR(AddTensors(*arch, *set, *source));
  source->Own(std::move(set));
  return source;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenHfFolder(const std::string& folder) {
  absl::StatusOr<std::unique_ptr<WeightSource>> source = Open(folder);
  if (!source.ok() && !absl::StrContains(source.status().message(), folder)) {
    return base::WithContext(source.status(), folder);
  }
  return source;
}

}  // namespace ridgefill::model
