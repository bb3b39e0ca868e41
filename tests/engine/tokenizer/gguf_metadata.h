// Writes a tokenizer as GGUF metadata, as llama.cpp's converter does: control and user-defined types, padding
// at the end.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/tokenizer/spec.h"

namespace ridgefill::tokenizer {

struct GgufOptions {
  std::string model = "gpt2";
  std::string pre = "llama-bpe";
  int padding = 0;  // unused tokens after the vocabulary
};

class GgufMetadataWriter {
 public:
  void String(const std::string& key, const std::string& value) {
    Key(key, 8);
    Text(value);
  }
  void Int(const std::string& key, uint32_t value) {
    Key(key, 4);
    Raw(value);
  }
  void Bool(const std::string& key, bool value) {
    Key(key, 7);
    Raw(static_cast<uint8_t>(value));
  }
  void Strings(const std::string& key, const std::vector<std::string>& values) {
    Array(key, 8, values.size());
    for (const std::string& value : values) Text(value);
  }
  void Ints(const std::string& key, const std::vector<int32_t>& values) {
    Array(key, 5, values.size());
    for (int32_t value : values) Raw(value);
  }
  std::string Finish() const {
    GgufMetadataWriter head;
    head.out_ = "GGUF";
    head.Raw(uint32_t{3});
    head.Raw(uint64_t{0});
    head.Raw(count_);
    return head.out_ + out_;
  }

 private:
  template <typename T>
  void Raw(T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out_.append(bytes, sizeof(T));
  }
  void Text(const std::string& text) {
    Raw(static_cast<uint64_t>(text.size()));
    out_ += text;
  }
  void Key(const std::string& key, uint32_t type) {
    ++count_;
    Text(key);
    Raw(type);
  }
  void Array(const std::string& key, uint32_t type, size_t size) {
    Key(key, 9);
    Raw(type);
    Raw(static_cast<uint64_t>(size));
  }
  std::string out_;
  uint64_t count_ = 0;
};

inline std::string GgufOf(TokenizerSpec spec, const GgufOptions& options) {
  for (const AddedToken& token : spec.added) {
    if (static_cast<size_t>(token.id) >= spec.vocab.size()) spec.vocab.resize(token.id + 1);
    spec.vocab[token.id] = token.content;
  }
  std::vector<int32_t> types(spec.vocab.size(), 1);
  for (const AddedToken& token : spec.added) types[token.id] = token.special ? 3 : 4;
  for (int i = 0; i < options.padding; ++i) {
    spec.vocab.push_back("[PAD" + std::to_string(spec.vocab.size()) + "]");
    types.push_back(5);
  }
  std::vector<std::string> merges;
  for (const auto& [left, right] : spec.merges) merges.push_back(absl::StrCat(left, " ", right));
  GgufMetadataWriter out;
  out.String("tokenizer.ggml.model", options.model);
  out.String("tokenizer.ggml.pre", options.pre);
  out.Strings("tokenizer.ggml.tokens", spec.vocab);
  out.Ints("tokenizer.ggml.token_type", types);
  out.Strings("tokenizer.ggml.merges", merges);
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    if (!spec.bos_token.empty() && spec.vocab[id] == spec.bos_token)
      out.Int("tokenizer.ggml.bos_token_id", id);
  }
  if (!spec.eos_ids.empty()) out.Int("tokenizer.ggml.eos_token_id", spec.eos_ids[0]);
  out.Bool("tokenizer.ggml.add_bos_token", !spec.prefix_ids.empty());
  out.String("tokenizer.chat_template", spec.chat_template);
  return out.Finish();
}

}  // namespace ridgefill::tokenizer
