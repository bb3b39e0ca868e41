// Model files to TokenizerSpec. Untrusted bytes in; errors TOKENIZER_UNSUPPORTED (names the part that is not
// supported and what is) and TOKENIZER_INVALID, or those of engine/formats. Thread-safe: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/formats/gguf.h"
#include "engine/tokenizer/spec.h"

namespace ridgefill::tokenizer {

absl::StatusOr<TokenizerSpec> SpecFromTokenizerJson(absl::string_view tokenizer_json);
// bos, eos and chat template of tokenizer_config.json; eos_token_id of generation_config.json or config.json.
absl::Status AddTokenizerConfig(absl::string_view tokenizer_config_json, TokenizerSpec& spec);
absl::Status AddEosIds(absl::string_view config_json, TokenizerSpec& spec);

absl::StatusOr<TokenizerSpec> SpecFromHuggingFaceFolder(const std::string& folder);
absl::StatusOr<TokenizerSpec> SpecFromGguf(const formats::GgufFile& file);

}  // namespace ridgefill::tokenizer
