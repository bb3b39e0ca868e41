#include "engine/tokenizer/stream_decoder.h"

#include "engine/tokenizer/utf8.h"

namespace ridgefill::tokenizer {

std::string StreamDecoder::Push(int32_t id) {
  if (options_.skip_special && tokenizer_->IsSpecial(id)) return "";
  const absl::string_view bytes = tokenizer_->TokenBytes(id);
  pending_.append(bytes.data(), bytes.size());
  return TakeUtf8(pending_, /*final=*/false);
}

std::string StreamDecoder::Finish() { return TakeUtf8(pending_, /*final=*/true); }

}  // namespace ridgefill::tokenizer
