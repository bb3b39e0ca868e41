#include "engine/fit/corpus.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/base/sha256.h"
#include "engine/base/status.h"

namespace ridgefill::fit {
namespace {

class CorpusTest : public testing::Test {
 public:
  ~CorpusTest() override { std::filesystem::remove_all(folder_); }

 protected:
  CorpusTest() : tokenizer_(tokenizer::Tokenizer::FromHuggingFace("tests/data/golden/tiny/llama").value()) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(base::WriteFileAtomically(folder_ + "/" + name, text).ok());
  }
  auto Load(int64_t tokens, uint64_t seed = 7) {
    return LoadCorpus(*tokenizer_, folder_, {.document_tokens = tokens, .seed = seed});
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/corpus_test.", getpid());
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
};

TEST_F(CorpusTest, CutsFilesIntoEqualDocumentsAndMixesThem) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i) + "\n";
  Write("a.txt", text);
  Write("b.txt", "other " + text);
  Write("notes.md", text);
  const auto documents = Load(50);
  ASSERT_TRUE(documents.ok()) << documents.status();
  std::set<std::pair<std::string, int64_t>> seen;
  for (const Document& document : *documents) {
    EXPECT_EQ(document.ids.size(), 50u);
    EXPECT_EQ(document.begin % 50, 0);
    EXPECT_NE(document.file, "notes.md");
    EXPECT_TRUE(seen.emplace(document.file, document.begin).second);
  }
  const auto whole = tokenizer_->Encode(text, {.add_special = false, .parse_special = false}).value();
  EXPECT_TRUE(seen.contains({"a.txt", static_cast<int64_t>(whole.size() / 50 - 1) * 50}));
  EXPECT_FALSE(seen.contains({"a.txt", static_cast<int64_t>(whole.size() / 50) * 50}));
  // Every document is its piece of the file, and files are mixed.
  for (const Document& document : *documents) {
    if (document.file != "a.txt") continue;
    EXPECT_EQ(document.file_digest, base::Sha256Hex(text));
    EXPECT_TRUE(std::equal(document.ids.begin(), document.ids.end(), whole.begin() + document.begin));
  }
  bool mixed = false;
  for (size_t i = 2; i < documents->size(); ++i) {
    mixed |= (*documents)[i].file == (*documents)[0].file && (*documents)[i - 1].file != (*documents)[0].file;
  }
  EXPECT_TRUE(mixed);
}

TEST_F(CorpusTest, TakesFoldersOfDomains) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "line " + std::to_string(i) + "\n";
  std::filesystem::create_directories(folder_ + "/code");
  Write("a.txt", text);
  Write("code/b.txt", "other " + text);
  const auto documents = Load(50);
  ASSERT_TRUE(documents.ok()) << documents.status();
  std::set<std::string> files;
  for (const Document& document : *documents) files.insert(document.file);
  EXPECT_EQ(files, (std::set<std::string>{"a.txt", "b.txt"}));
}

TEST_F(CorpusTest, SaysWhatWasLookedFor) {
  const auto message = [&](int64_t tokens) {
    const absl::Status status = Load(tokens).status();
    EXPECT_EQ(base::GetErrorDetail(status)->reason, "CORPUS_EMPTY");
    return std::string(status.message());
  };
  EXPECT_THAT(message(10), testing::HasSubstr(".txt"));
  Write("a.txt", "short");
  EXPECT_THAT(message(1000), testing::HasSubstr("1000"));
  std::filesystem::remove_all(folder_);
  EXPECT_THAT(message(10), testing::HasSubstr(folder_));
}

TEST_F(CorpusTest, NamesTheFileThatIsNotText) {
  Write("a.txt", "fine");
  Write("b.txt", "bad \xff bytes");
  EXPECT_EQ(base::GetErrorDetail(Load(0).status())->reason, "FIT_DOCUMENT_TOKENS");
  const absl::Status status = Load(2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("b.txt"));
}

}  // namespace
}  // namespace ridgefill::fit
