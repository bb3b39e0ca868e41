// Text for fitting and measuring: the .txt files of a folder and those below it as documents of equal length.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/tokenizer/tokenizer.h"

namespace ridgefill::fit {

struct Document {
  std::string file;   // plain name
  int64_t begin = 0;  // of its first token within the file
  std::vector<int32_t> ids;
  std::string file_digest = {};  // sha256 of the whole file; empty: unknown
};

struct CorpusOptions {
  int64_t document_tokens = 4096;
  // Of the shuffle: documents of all files come mixed, in an order that depends on file names, text and seed.
  uint64_t seed = 7;
};

// Paths of every *.txt of the folder and those below it, in order. NOT_FOUND (CORPUS_EMPTY).
absl::StatusOr<std::vector<std::string>> TextFiles(const std::string& folder);

// Each of them tokenised whole without special tokens, cut into documents; the rest of
// a file is dropped. NOT_FOUND (CORPUS_EMPTY) naming what was looked for.
absl::StatusOr<std::vector<Document>> LoadCorpus(const tokenizer::Tokenizer& tokenizer,
                                                 const std::string& folder, const CorpusOptions& options);

// sha256 of a document's tokens.
std::string TokensDigest(absl::Span<const int32_t> ids);

}  // namespace ridgefill::fit
