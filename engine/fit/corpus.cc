#include "engine/fit/corpus.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/base/rng.h"
#include "engine/base/sha256.h"
#include "engine/base/status.h"

namespace ridgefill::fit {
namespace {

absl::Status Empty(absl::string_view message) {
  return base::Error(absl::StatusCode::kNotFound, "CORPUS_EMPTY", message);
}

absl::Status AddFile(const tokenizer::Tokenizer& tokenizer, const std::string& path, int64_t document_tokens,
                     std::vector<Document>& out) {
  RF_ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path));
  const auto ids = tokenizer.Encode(text, {.add_special = false, .parse_special = false});
  if (!ids.ok()) return base::WithContext(ids.status(), path);
  const int64_t tokens = static_cast<int64_t>(ids->size());
  const std::string digest = base::Sha256Hex(text);
  for (int64_t begin = 0; begin + document_tokens <= tokens; begin += document_tokens) {
    out.push_back({std::filesystem::path(path).filename().string(), begin,
                   std::vector<int32_t>(ids->begin() + begin, ids->begin() + begin + document_tokens),
                   digest});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> TextFiles(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> files;
  constexpr auto kOptions = std::filesystem::directory_options::skip_permission_denied;
  std::filesystem::recursive_directory_iterator it(folder, kOptions, error);
  while (!error && it != std::filesystem::recursive_directory_iterator()) {
    if (it->path().extension() == ".txt") files.push_back(it->path().string());
    it.increment(error);
  }
  if (error) return Empty(absl::StrCat("cannot read the corpus folder ", folder, ": ", error.message()));
  if (files.empty()) return Empty(absl::StrCat("no .txt file in the corpus folder ", folder));
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<std::vector<Document>> LoadCorpus(const tokenizer::Tokenizer& tokenizer,
                                                 const std::string& folder, const CorpusOptions& options) {
  if (options.document_tokens < 2) {
    return base::Error(
        absl::StatusCode::kInvalidArgument, "FIT_DOCUMENT_TOKENS",
        absl::StrCat("documents must have at least 2 tokens, asked for ", options.document_tokens));
  }
  RF_ASSIGN_OR_RETURN(const auto files, TextFiles(folder));
  std::vector<Document> documents;
  for (const auto& file : files) {
    RF_RETURN_IF_ERROR(AddFile(tokenizer, file, options.document_tokens, documents));
  }
  if (documents.empty()) {
    return Empty(absl::StrCat("no file in ", folder, " has ", options.document_tokens, " tokens"));
  }
  base::Rng rng(options.seed);
  for (size_t i = documents.size() - 1; i > 0; --i) std::swap(documents[i], documents[rng.NextBelow(i + 1)]);
  return documents;
}

std::string TokensDigest(absl::Span<const int32_t> ids) {
  return base::Sha256Hex({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)});
}

}  // namespace ridgefill::fit
