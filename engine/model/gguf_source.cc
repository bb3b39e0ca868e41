#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "engine/base/status.h"
#include "engine/model/file_source.h"

namespace ridgefill::model {
namespace {

constexpr absl::string_view kRopeFrequencies =
    "rope_freqs.weight";  // part of the configuration, not of the table

absl::Status AddTensors(const ArchSpec& arch, const formats::GgufFile& gguf, FileSource& source) {
  absl::flat_hash_set<std::string> known = {std::string(kRopeFrequencies)};
  for (const TensorSpec& spec : arch.tensors(source.config())) {
    known.insert(spec.gguf_name);
    if (spec.optional && !gguf.HasTensor(spec.gguf_name)) continue;
    RF_ASSIGN_OR_RETURN(const formats::TensorBytes stored, gguf.Tensor(spec.gguf_name));
    RF_RETURN_IF_ERROR(source.Add(spec, stored, spec.gguf_rope_heads));
  }
  for (const formats::TensorInfo& info : gguf.tensors()) {
    if (!known.contains(info.name)) return UnexpectedTensor(arch.name, info.name);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WeightSource>> Open(const std::string& path) {
  RF_ASSIGN_OR_RETURN(formats::GgufFile file, formats::GgufFile::Open(path));
  RF_ASSIGN_OR_RETURN(const absl::string_view arch_name, file.GetString("general.architecture"));
  RF_ASSIGN_OR_RETURN(const ArchSpec* arch, FindArch(arch_name));
  RF_ASSIGN_OR_RETURN(ModelConfig config, arch->from_gguf(file));
  auto gguf = std::make_unique<formats::GgufFile>(std::move(file));
  auto source = std::make_unique<FileSource>(path, std::move(config));
  RF_RETURN_IF_ERROR(AddTensors(*arch, *gguf, *source));
  source->Own(std::move(gguf));
  return source;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenGguf(const std::string& path) {
  absl::StatusOr<std::unique_ptr<WeightSource>> source = Open(path);
  if (!source.ok() && !absl::StrContains(source.status().message(), path)) {
    return base::WithContext(source.status(), path);
  }
  return source;
}

}  // namespace ridgefill::model
