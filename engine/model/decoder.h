// What decoders of the Llama family share: configuration fields, refusals and tensor names. An architecture
// starts from these and adds what is its own.
//
// Everything that would change the model and that this build does not compute is refused by name:
// UNIMPLEMENTED with reason UNSUPPORTED_ROPE_SCALING or UNSUPPORTED_CONFIG; values that make no sense are
// INVALID_ARGUMENT MODEL_CONFIG.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/formats/gguf.h"
#include "engine/formats/json.h"
#include "engine/model/arch_spec.h"
#include "engine/model/config.h"

namespace ridgefill::model {

absl::StatusOr<ModelConfig> DecoderFromHf(absl::string_view arch, const formats::Json& json);
absl::StatusOr<ModelConfig> DecoderFromGguf(absl::string_view arch, const formats::GgufFile& file);

// UNIMPLEMENTED UNSUPPORTED_CONFIG: `field` is `value`, this build has `supported`.
absl::Status UnsupportedConfig(absl::string_view field, absl::string_view value, absl::string_view supported);

// Embedding, layers, final norm and, unless tied, the head. `gguf_permuted`: whether the architecture's GGUF
// files store Q and K rows permuted for interleaved RoPE.
std::vector<TensorSpec> DecoderTensors(const ModelConfig& config, bool gguf_permuted);

}  // namespace ridgefill::model
