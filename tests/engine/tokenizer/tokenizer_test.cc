// Contracts of Tokenizer beside equality with Hugging Face: errors, both file forms, stop ids, work on
// adversarial text.
#include "engine/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/base/status.h"
#include "engine/formats/gguf.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/loaders.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/utf8.h"
#include "tests/engine/tokenizer/gguf_metadata.h"
#include "tests/engine/tokenizer/test_data.h"

namespace ridgefill::tokenizer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Reason(const absl::Status& status) {
  const auto detail = base::GetErrorDetail(status);
  return detail.has_value() ? detail->reason : absl::StrCat("none: ", status.ToString());
}

std::string Repeat(absl::string_view text, size_t times) {
  std::string out;
  out.reserve(text.size() * times);
  for (size_t i = 0; i < times; ++i) absl::StrAppend(&out, text);
  return out;
}

TEST(TokenizerTest, RefusesInvalidUtf8WithItsOffset) {
  const auto tokenizer = LoadTokenizer("llama3");
  const std::pair<std::string, std::string> cases[] = {
      {"abc\xFFxyz", "3"},   {"\xC0\x80", "0"},         {"\xED\xA0\x80", "0"},  {"ok \xE2\x82", "3"},
      {"\xC3\xA9\x80", "2"}, {"\xF4\x90\x80\x80", "0"}, {"a\xE0\x80\x80", "1"}, {"\xF5\x80\x80\x80", "0"}};
  for (const auto& [text, offset] : cases) {
    const auto ids = tokenizer->Encode(text);
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Reason(ids.status()), "INVALID_UTF8");
    EXPECT_THAT(base::GetErrorDetail(ids.status())->metadata, ElementsAre(testing::Pair("offset", offset)));
  }
  EXPECT_TRUE(tokenizer->Encode("\xF4\x8F\xBF\xBF\xEE\x80\x80").ok());
}

TEST(TokenizerTest, RefusesIdsOutsideTheVocabulary) {
  const auto tokenizer = LoadTokenizer("llama3");
  EXPECT_EQ(Reason(tokenizer->Decode(std::vector<int32_t>{-1}).status()), "TOKEN_ID_RANGE");
  EXPECT_EQ(Reason(tokenizer->Decode(std::vector<int32_t>{tokenizer->vocab_size()}).status()),
            "TOKEN_ID_RANGE");
  EXPECT_TRUE(tokenizer->Decode(std::vector<int32_t>{tokenizer->vocab_size() - 1}).ok());
  EXPECT_EQ(tokenizer->TokenBytes(-5), "");
  EXPECT_EQ(tokenizer->TokenBytes(1 << 30), "");
  EXPECT_FALSE(tokenizer->IsSpecial(1 << 30));
}

TEST(TokenizerTest, AddsBosWhereTheModelDoes) {
  const auto llama = LoadTokenizer("llama3");
  const auto with = *llama->Encode("hi"), without = *llama->Encode("hi", {.add_special = false});
  ASSERT_EQ(with.size(), without.size() + 1);
  EXPECT_EQ(llama->TokenBytes(with[0]), "<|begin_of_text|>");
  const auto smollm = LoadTokenizer("smollm2");
  EXPECT_EQ(*smollm->Encode("hi"), *smollm->Encode("hi", {.add_special = false}));
  EXPECT_THAT(*smollm->Encode(""), ElementsAre());
}

TEST(TokenizerTest, KnowsStopIds) {
  const auto texts = [](const Tokenizer& tokenizer) {
    std::vector<std::string> out;
    for (int32_t id : tokenizer.stop_ids()) out.emplace_back(tokenizer.TokenBytes(id));
    return out;
  };
  EXPECT_THAT(texts(*LoadTokenizer("smollm2")), ElementsAre("<|endoftext|>", "<|im_end|>"));
  EXPECT_THAT(texts(*LoadTokenizer("qwen2")), ElementsAre("<|endoftext|>", "<|im_end|>"));
  EXPECT_THAT(texts(*LoadTokenizer("llama3")), ElementsAre("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"));
  EXPECT_THAT(texts(*LoadTokenizer("flags")), ElementsAre());
}

TEST(TokenizerTest, IsTheSameFromGguf) {
  const std::pair<const char*, const char*> models[] = {
      {"smollm2", "smollm"}, {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}};
  for (const auto& [name, pre] : models) {
    const TokenizerSpec spec = *SpecFromHuggingFaceFolder(DataPath(name));
    const std::string bytes = GgufOf(spec, {.pre = pre, .padding = 7});
    const auto file = formats::GgufFile::Parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto gguf = Tokenizer::FromGguf(*file);
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    const auto hf = LoadTokenizer(name);
    EXPECT_EQ((*gguf)->digest(), hf->digest());
    EXPECT_EQ((*gguf)->digest().size(), 64u);
    EXPECT_EQ((*gguf)->vocab_size(), hf->vocab_size());
    EXPECT_EQ((*gguf)->stop_ids(), hf->stop_ids());
    const std::string text = "Caf\u0065\u0301 <|im_start|>x<|eot_id|> 123456 \n\n it's";
    EXPECT_EQ(*(*gguf)->Encode(text), *hf->Encode(text)) << name;
    const std::vector<ChatMessage> chat = {{"user", "hello"}};
    EXPECT_EQ(*(*gguf)->EncodeChat(chat), *hf->EncodeChat(chat));
  }
}

TEST(TokenizerTest, RefusesOtherGgufTokenizersByName) {
  const TokenizerSpec spec = *SpecFromHuggingFaceFolder(DataPath("flags"));
  const auto status = [&](const GgufOptions& options) {
    const std::string bytes = GgufOf(spec, options);
    const auto file = formats::GgufFile::Parse(bytes);
    return Tokenizer::FromGguf(*file).status();
  };
  EXPECT_TRUE(status({.pre = "llama-bpe"}).ok()) << status({.pre = "llama-bpe"});
  for (const auto& bad : {status({.model = "llama"}), status({.pre = "deepseek-llm"}), status({.pre = ""})}) {
    EXPECT_EQ(Reason(bad), "TOKENIZER_UNSUPPORTED");
  }
  EXPECT_THAT(std::string(status({.model = "llama"}).message()), HasSubstr("\"llama\""));
  EXPECT_THAT(std::string(status({.pre = "deepseek-llm"}).message()), HasSubstr("deepseek-llm"));
}

TEST(TokenizerTest, RefusesOtherTokenizerJsonByName) {
  const std::string good = ReadData("flags/tokenizer.json");
  ASSERT_TRUE(SpecFromTokenizerJson(good).ok());
  struct Case {
    const char *from, *to, *reason, *names;
  };
  const Case cases[] = {
      {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", "TOKENIZER_UNSUPPORTED", "Unigram"},
      {"\"type\":\"BPE\"", "\"type\":\"WordPiece\"", "TOKENIZER_UNSUPPORTED", "WordPiece"},
      {"\"byte_fallback\":false", "\"byte_fallback\":true", "TOKENIZER_UNSUPPORTED", "byte_fallback"},
      {"\"type\":\"NFC\"", "\"type\":\"NFKC\"", "TOKENIZER_UNSUPPORTED", "NFKC"},
      {"\\\\p{N}{1,3}", "\\\\p{N}{1,2}", "TOKENIZER_UNSUPPORTED", "pre_tokenizer"},
      {"\"behavior\":\"Isolated\"", "\"behavior\":\"Removed\"", "TOKENIZER_UNSUPPORTED", "Split"},
      {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", "TOKENIZER_UNSUPPORTED", "</w>"},
      {"\"post_processor\":null", "\"post_processor\":{\"type\":\"BertProcessing\"}", "TOKENIZER_UNSUPPORTED",
       "BertProcessing"},
      {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Metaspace\"", "TOKENIZER_UNSUPPORTED",
       "Metaspace"},
      {"\"vocab\":{", "\"vocab\":{\"x y\":-1,", "TOKENIZER_INVALID", "-1"},
      {"\"vocab\":{", "\"vocab\":{\"x y\":4000000000,", "TOKENIZER_INVALID", "id"},
      {"\"vocab\":{", "\"vocab\":{\"x y\":1,", "TOKENIZER_INVALID", "the id 1"},
      {"\"merges\":[", "\"merges\":[[\"a\"],", "TOKENIZER_INVALID", "merge 0"},
      {"\"merges\":[", "\"merges\":[\"a b c\",", "TOKENIZER_INVALID", "merge 0"},
      {"\"merges\":[", "\"merges\":[5,", "TOKENIZER_INVALID", "merge 0"},
  };
  for (const Case& c : cases) {
    std::string bad = good;
    ASSERT_NE(bad.find(c.from), std::string::npos) << c.from;
    bad.replace(bad.find(c.from), std::string(c.from).size(), c.to);
    const auto spec = SpecFromTokenizerJson(bad);
    EXPECT_EQ(Reason(spec.status()), c.reason) << c.to << spec.status();
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(c.names));
  }
}

TEST(TokenizerTest, ReadsBothFormsOfMerges) {
  std::string text = ReadData("flags/tokenizer.json");
  const TokenizerSpec pairs = *SpecFromTokenizerJson(text);
  ASSERT_THAT(text, HasSubstr("\"merges\":[[\""));
  const size_t begin = text.find("\"merges\":[");
  std::string strings = "\"merges\":[";
  for (size_t i = 0; i < pairs.merges.size(); ++i) {
    const auto escaped = [](const std::string& s) {
      return absl::StrReplaceAll(s, {{"\\", "\\\\"}, {"\"", "\\\""}});
    };
    absl::StrAppend(&strings, i > 0 ? "," : "", "\"", escaped(pairs.merges[i].first), " ",
                    escaped(pairs.merges[i].second), "\"");
  }
  const size_t end = text.find("]]", begin) + 1;
  text.replace(begin, end - begin, strings);
  const auto spec = SpecFromTokenizerJson(text);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->merges, pairs.merges);
  EXPECT_GT(spec->merges.size(), 100u);
}

TEST(TokenizerTest, RefusesInconsistentSpecs) {
  const TokenizerSpec good = *SpecFromHuggingFaceFolder(DataPath("flags"));
  const auto reason = [&](auto change) {
    TokenizerSpec spec = good;
    change(spec);
    return Reason(Tokenizer::Create(std::move(spec)).status());
  };
  EXPECT_EQ(reason([](TokenizerSpec& s) { s.vocab = {}, s.added = {}, s.merges = {}; }), "TOKENIZER_INVALID");
  EXPECT_EQ(reason([](TokenizerSpec& s) { s.vocab.push_back(s.vocab[3]); }), "TOKENIZER_INVALID");
  EXPECT_EQ(reason([](TokenizerSpec& s) { s.added.push_back(s.added[0]); }), "TOKENIZER_INVALID");
  EXPECT_EQ(reason([](TokenizerSpec& s) { s.added[0].id = 3; }), "TOKENIZER_INVALID");
  EXPECT_EQ(reason([](TokenizerSpec& s) { s.added[0].id = 1 << 30; }), "TOKENIZER_INVALID");
  EXPECT_EQ(reason([](TokenizerSpec& s) { s.added[0].content = ""; }), "TOKENIZER_INVALID");
  EXPECT_EQ(reason([](TokenizerSpec& s) { s.added[0].content = "\xFF"; }), "TOKENIZER_INVALID");
  EXPECT_EQ(reason([](TokenizerSpec& s) { s.merges.emplace_back("qqq", "zzz"); }), "TOKENIZER_INVALID");
  EXPECT_EQ(reason([](TokenizerSpec& s) { s.prefix_ids = {1 << 20}; }), "TOKENIZER_INVALID");
}

TEST(TokenizerTest, DigestTellsTokenizersApart) {
  const TokenizerSpec good = *SpecFromHuggingFaceFolder(DataPath("flags"));
  const auto digest = [&](auto change) {
    TokenizerSpec spec = good;
    change(spec);
    return (*Tokenizer::Create(std::move(spec)))->digest();
  };
  const std::string same = digest([](TokenizerSpec&) {});
  EXPECT_EQ(same, digest([](TokenizerSpec& s) { s.chat_template = "x"; }));
  EXPECT_NE(same, digest([](TokenizerSpec& s) { std::swap(s.merges[0], s.merges[1]); }));
  EXPECT_NE(same, digest([](TokenizerSpec& s) { std::swap(s.vocab[0], s.vocab[1]); }));
  EXPECT_NE(same, digest([](TokenizerSpec& s) { s.added[0].special = !s.added[0].special; }));
  EXPECT_NE(same, digest([](TokenizerSpec& s) { s.pre_tokenizer = PreTokenizerKind::kQwen2; }));
  EXPECT_NE(same, digest([](TokenizerSpec& s) { s.normalizer = NormalizerKind::kNone; }));
  EXPECT_NE(same, digest([](TokenizerSpec& s) { s.ignore_merges = true; }));
}

TEST(TokenizerTest, NamesTheFolderWithoutTokenizer) {
  const auto tokenizer = Tokenizer::FromHuggingFace("/nonexistent-folder");
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("/nonexistent-folder/tokenizer.json"));
}

// The work of a word of n bytes is counted, not timed: n - 1 pairs at the start, two more for each of at most
// n - 1 merges.
TEST(TokenizerTest, MergeWorkIsBounded) {
  for (const char* name : {"smollm2", "llama3", "qwen2"}) {
    const TokenizerSpec spec = *SpecFromHuggingFaceFolder(DataPath(name));
    std::vector<std::string> token_bytes;
    for (const std::string& token : spec.vocab)
      token_bytes.push_back(ByteLevelToBytes(token).value_or(token));
    const auto bpe = Bpe::Create(spec, token_bytes);
    ASSERT_TRUE(bpe.ok()) << bpe.status();
    size_t pushes = 0;
    for (const std::string unit : {"a", " ", "=", "ab", "\u0301", "the"}) {
      const std::string word = Repeat(unit, 100000 / unit.size());
      Bpe::Scratch scratch;
      std::vector<int32_t> ids;
      bpe->EncodeWord(word, scratch, ids);
      EXPECT_LE(scratch.pushes, 3 * word.size());
      pushes += scratch.pushes;
      std::string back;
      for (int32_t id : ids) back += token_bytes[id];
      EXPECT_EQ(back, word);
    }
    EXPECT_GT(pushes, 100000u);
  }
}

void ExpectRoundTrip(const std::string& name, const Tokenizer& tokenizer, const std::string& unit,
                     size_t bytes) {
  const std::string text = Repeat(unit, bytes / unit.size()) + "x";
  const auto ids = tokenizer.Encode(text, {.add_special = false});
  ASSERT_TRUE(ids.ok()) << name << ids.status();
  const std::string expected = name == "qwen2" ? *NormalizeNfc(text) : text;
  EXPECT_TRUE(*tokenizer.Decode(*ids, {.skip_special = false}) == expected) << name << " " << unit;
}

// A quadratic step anywhere would take minutes to hours on these, and the test's time limit would end it.
TEST(TokenizerTest, AMegabyteOfOneThing) {
  for (const char* name : {"smollm2", "llama3", "qwen2"}) {
    const auto tokenizer = LoadTokenizer(name);
    for (const char* unit : {"a", " ", "\u0301", "\u0323\u0301"})
      ExpectRoundTrip(name, *tokenizer, unit, 1 << 20);
    for (const char* unit : {"\n", " \n", "1", "'", "<", "<|", "<|im_end|>", "a\u0301\u0323", "\u00e9",
                             "\u3000", "\u1100", "\U0001F468\u200D", "a "}) {
      ExpectRoundTrip(name, *tokenizer, unit, 1 << 16);
    }
  }
}

TEST(NormalizerTest, SortsAMegabyteOfMarks) {
  // Dot below (220) sorts before acute (230): all of them move to the front.
  const size_t pairs = (1 << 20) / 4;
  const std::string sorted = *NormalizeNfc(Repeat("\u0301\u0323", pairs));
  EXPECT_TRUE(sorted == Repeat("\u0323", pairs) + Repeat("\u0301", pairs));
}

TEST(Utf8Test, TakesWholeSequencesOnly) {
  std::string pending = "a\xE2\x82";
  EXPECT_EQ(TakeUtf8(pending, false), "a");
  EXPECT_EQ(pending, "\xE2\x82");
  pending += "\xAC!";
  EXPECT_EQ(TakeUtf8(pending, false), "\u20AC!");
  pending = "\xF0\x9F\x98";
  EXPECT_EQ(TakeUtf8(pending, true), "\uFFFD");
  pending = "\xE2\x28\xF0\x9Fz\x80";
  EXPECT_EQ(TakeUtf8(pending, true), "\uFFFD(\uFFFDz\uFFFD");
  EXPECT_EQ(pending, "");
}

}  // namespace
}  // namespace ridgefill::tokenizer
