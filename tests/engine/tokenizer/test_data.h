// The checked-in tokenizers and goldens of tests/data/tokenizer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/formats/json.h"
#include "engine/tokenizer/tokenizer.h"

namespace ridgefill::tokenizer {

inline std::string DataPath(const std::string& name) {
  return RIDGEFILL_SOURCE_DIR "/tests/data/tokenizer/" + name;
}

inline std::string ReadData(const std::string& name) {
  auto bytes = base::ReadFile(DataPath(name));
  RF_CHECK(bytes.ok());
  return *std::move(bytes);
}

inline formats::Json ReadJsonData(const std::string& name) {
  auto json = formats::ParseJson(ReadData(name));
  RF_CHECK(json.ok());
  return *std::move(json);
}

inline std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& name) {
  auto tokenizer = Tokenizer::FromHuggingFace(DataPath(name));
  if (!tokenizer.ok()) std::fprintf(stderr, "%s\n", std::string(tokenizer.status().message()).c_str());
  RF_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

}  // namespace ridgefill::tokenizer
