// Checks that both configuration readers (decoder_hf.cc, decoder_gguf.cc) end in. Internal to engine/model.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/config.h"

namespace ridgefill::model {

// So large that no real model meets them, so small that their products stay far inside int64.
inline constexpr int64_t kMaxLayers = 1024, kMaxWidth = 1 << 20, kMaxHeads = 4096, kMaxHeadDim = 1024,
                         kMaxVocab = 1 << 24, kMaxContext = 1 << 30;

absl::Status UnsupportedRope(absl::string_view kind);
absl::Status BadConfig(absl::string_view field, absl::string_view problem);
// `value` in [1, limit].
absl::StatusOr<int> CheckedSize(absl::string_view field, int64_t value, int64_t limit);
// Relations between fields that were read one by one.
absl::Status CheckConfig(const ModelConfig& config);

}  // namespace ridgefill::model
