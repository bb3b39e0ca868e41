// One architecture = one file under arch/ that defines one ArchSpec. CMake lists the files, so that nothing
// else names them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/formats/json.h"
#include "engine/model/config.h"

namespace ridgefill::formats {
class GgufFile;
}

namespace ridgefill::model {

struct LayerRun;  // engine/model/blocks.h

struct TensorSpec {
  std::string hf_name;
  std::string gguf_name;
  std::vector<int64_t> dims;
  bool optional = false;
  // GGUF stores these rows permuted for interleaved RoPE, in this many heads; 0: not permuted.
  int gguf_rope_heads = 0;
};

struct ArchSpec {
  absl::string_view name;  // `model_type` in config.json and `general.architecture` in GGUF
  absl::StatusOr<ModelConfig> (*from_hf)(const nlohmann::json& config);
  absl::StatusOr<ModelConfig> (*from_gguf)(const formats::GgufFile& file);
  std::vector<TensorSpec> (*tensors)(const ModelConfig& config);
  // One layer over a batch: residual in, residual out.
  absl::Status (*forward_layer)(LayerRun& run);
};

// All architectures of this build.
absl::Span<const ArchSpec* const> AllArchs();
// UNIMPLEMENTED naming the architecture and the supported ones.
absl::StatusOr<const ArchSpec*> FindArch(absl::string_view name);

}  // namespace ridgefill::model
