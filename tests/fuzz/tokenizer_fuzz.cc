// Input: a tokenizer.json, a zero byte, a text. Nothing may crash; what loads must encode any valid UTF-8;
// and a fixed byte-level tokenizer without normaliser or special tokens must give every text back.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/base/check.h"
#include "engine/tokenizer/loaders.h"
#include "engine/tokenizer/stop_matcher.h"
#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/utf8.h"

namespace ridgefill::tokenizer {
namespace {

std::string ByteToken(int byte) {
  const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
  int other = 0x100;
  for (int b = 0; b < byte; ++b)
    other += !((b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE);
  std::string out;
  AppendUtf8(static_cast<uint32_t>(prints ? byte : other), out);
  return out;
}

std::unique_ptr<Tokenizer> MakeFixed(PreTokenizerKind kind) {
  TokenizerSpec spec;
  spec.pre_tokenizer = kind;
  for (int byte = 0; byte < 256; ++byte) spec.vocab.push_back(ByteToken(byte));
  const auto merge = [&](const std::string& left, const std::string& right) {
    spec.vocab.push_back(left + right);
    spec.merges.emplace_back(left, right);
  };
  merge("a", "a");
  merge("aa", "a");
  merge(ByteToken(' '), ByteToken(' '));
  merge(ByteToken(0xCC), ByteToken(0x81));
  merge("a", "b");
  auto tokenizer = Tokenizer::Create(std::move(spec));
  RF_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

void CheckStream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDecoder stream(&tokenizer);
  StopMatcher matcher = *StopMatcher::Create({"\x01\x02never"});
  std::string text;
  for (int32_t id : ids) text += matcher.Push(stream.Push(id)).emit;
  const StopResult last = matcher.Push(stream.Finish());
  text += last.emit + matcher.Finish();
  RF_CHECK(last.stopped || text == *tokenizer.Decode(ids));
}

void RoundTrip(absl::string_view text) {
  for (PreTokenizerKind kind :
       {PreTokenizerKind::kLlama3, PreTokenizerKind::kQwen2, PreTokenizerKind::kSmolLm}) {
    static const std::unique_ptr<Tokenizer> tokenizers[] = {MakeFixed(PreTokenizerKind::kLlama3),
                                                            MakeFixed(PreTokenizerKind::kQwen2),
                                                            MakeFixed(PreTokenizerKind::kSmolLm)};
    const Tokenizer& tokenizer = *tokenizers[static_cast<int>(kind)];
    const auto ids = tokenizer.Encode(text);
    RF_CHECK(ids.ok() == !FindInvalidUtf8(text).has_value());
    if (ids.ok()) RF_CHECK(*tokenizer.Decode(*ids) == text);
  }
}

void Load(absl::string_view json, absl::string_view text) {
  auto spec = SpecFromTokenizerJson(json);
  if (!spec.ok()) return;
  spec->chat_template = std::string(text);
  const auto tokenizer = Tokenizer::Create(*std::move(spec));
  if (!tokenizer.ok()) return;
  for (bool parse_special : {true, false}) {
    const auto ids = (*tokenizer)->Encode(text, {.parse_special = parse_special});
    RF_CHECK(ids.ok() == !FindInvalidUtf8(text).has_value());
    if (ids.ok()) CheckStream(**tokenizer, *ids);
  }
  const std::string content(text);
  (void)(*tokenizer)->EncodeChat(std::vector<ChatMessage>{{"user", content}}).ok();
}

}  // namespace
}  // namespace ridgefill::tokenizer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const absl::string_view text = zero == absl::string_view::npos ? "" : input.substr(zero + 1);
  ridgefill::tokenizer::RoundTrip(text);
  ridgefill::tokenizer::Load(input.substr(0, zero), text);
  return 0;
}
