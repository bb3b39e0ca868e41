#include "engine/formats/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/formats/refusals.h"

namespace ridgefill::formats {
namespace {

using testing::ElementsAre;

Json Parsed(absl::string_view text) {
  auto json = ParseJson(text);
  EXPECT_TRUE(json.ok()) << json.status();
  return json.ok() ? *std::move(json) : Json();
}

TEST(Json, ParsesWhatTheLibraryParses) {
  for (const absl::string_view text :
       {R"({"a": [1, -2, 3.5, true, false, null, "x\u00e9\n"], "b": {"c": {}, "d": []}})", "[]", "7", "\"s\"",
        "null", "[[[1],2],[3,[4]]]", "18446744073709551615", " {} \n"}) {
    EXPECT_EQ(Parsed(text), Json::parse(text)) << text;
  }
}

TEST(Json, ErrorsNameTheByte) {
  struct Case {
    absl::string_view text;
    const char* reason;
    const char* names;
  };
  const Case cases[] = {
      {"", "JSON_SYNTAX", "byte 0"},
      {"{\"a\": }", "JSON_SYNTAX", "byte 7: unexpected"},
      {"[1, 2", "JSON_SYNTAX", "byte 5"},
      {"[1] x", "JSON_SYNTAX", "byte 5"},
      {"{\"a\": 1e999}", "JSON_RANGE", "1e999"},
      {"\"\xff\"", "JSON_SYNTAX", "byte 2"},
      {"{\"a\": 1, \"a\": 2}", "JSON_DUPLICATE_KEY", "key \"a\" is given twice"},
      {"[NaN]", "JSON_SYNTAX", "byte 2"},
      {"{'a': 1}", "JSON_SYNTAX", "byte 2"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.text));
    ExpectRefused(ParseJson(c.text).status(), c.reason, c.names);
  }
}

TEST(Json, LimitsDepthAndSize) {
  EXPECT_TRUE(ParseJson("[[1]]", {.max_depth = 2}).ok());
  ExpectRefused(ParseJson("[[[1]]]", {.max_depth = 2}).status(), "JSON_TOO_DEEP", "byte 3");
  EXPECT_TRUE(ParseJson("[1]", {.max_bytes = 3}).ok());
  ExpectRefused(ParseJson("[11]", {.max_bytes = 3}).status(), "JSON_TOO_LARGE", "4 bytes");
  // Deep input must cost neither stack nor much memory.
  ExpectRefused(ParseJson(std::string(1 << 20, '[')).status(), "JSON_TOO_DEEP", "byte 65");
  ExpectRefused(ParseJson(std::string(1 << 10, '{')).status(), "JSON_SYNTAX", "byte 2");
}

TEST(Json, GettersReadByPath) {
  const Json json = Parsed(R"({"i": 3, "d": 2.5, "b": true, "s": "text", "n": null, "o": {"i": 4},
                              "ints": [1, 2], "doubles": [1, 2.5], "strings": ["x", "y"]})");
  EXPECT_EQ(*GetInt(json, "i"), 3);
  EXPECT_EQ(*GetInt(json, "o/i"), 4);
  EXPECT_EQ(*GetDouble(json, "d"), 2.5);
  EXPECT_EQ(*GetDouble(json, "i"), 3.0);
  EXPECT_TRUE(*GetBool(json, "b"));
  EXPECT_EQ(*GetString(json, "s"), "text");
  EXPECT_EQ((*GetObject(json, "o"))->size(), 1u);
  EXPECT_EQ((*GetArray(json, "ints"))->size(), 2u);
  EXPECT_THAT(*GetInts(json, "ints"), ElementsAre(1, 2));
  EXPECT_THAT(*GetDoubles(json, "doubles"), ElementsAre(1, 2.5));
  EXPECT_THAT(*GetStrings(json, "strings"), ElementsAre("x", "y"));
  EXPECT_EQ(*GetIntOr(json, "absent", 9), 9);
  EXPECT_EQ(*GetIntOr(json, "n", 9), 9);
  EXPECT_EQ(*GetDoubleOr(json, "d", 9), 2.5);
  EXPECT_FALSE(*GetBoolOr(json, "absent", false));
  EXPECT_EQ(*GetStringOr(json, "absent", "z"), "z");
  EXPECT_TRUE(HasJson(json, "o/i"));
  EXPECT_FALSE(HasJson(json, "n"));
  EXPECT_FALSE(HasJson(json, "i/x"));
}

TEST(Json, GettersNameThePath) {
  const Json json =
      Parsed(R"({"o": {"i": "text", "d": 2.5, "big": 9223372036854775808}, "list": [1, "two"], "n": null})");
  ExpectRefused(GetInt(json, "o/i").status(), "JSON_TYPE", "\"o/i\" is string, must be an integer");
  ExpectRefused(GetInt(json, "o/d").status(), "JSON_TYPE", "\"o/d\" is number");
  ExpectRefused(GetInt(json, "o/big").status(), "JSON_RANGE", "\"o/big\"");
  ExpectRefused(GetInt(json, "o/absent").status(), "JSON_MISSING_KEY", "\"o/absent\" is missing");
  ExpectRefused(GetInt(json, "n").status(), "JSON_MISSING_KEY", "\"n\"");
  ExpectRefused(GetInts(json, "list").status(), "JSON_TYPE", "\"list/1\"");
  ExpectRefused(GetStrings(json, "list").status(), "JSON_TYPE", "\"list/0\"");
  ExpectRefused(GetObject(json, "list").status(), "JSON_TYPE", "must be an object");
  ExpectRefused(GetArray(json, "o").status(), "JSON_TYPE", "must be an array");
  ExpectRefused(GetBool(json, "o").status(), "JSON_TYPE", "must be true or false");
  ExpectRefused(GetString(json, "list").status(), "JSON_TYPE", "must be a string");
  ExpectRefused(GetIntOr(json, "o/i", 1).status(), "JSON_TYPE", "\"o/i\"");
  ExpectRefused(GetInt(Parsed("[1]"), "x").status(), "JSON_MISSING_KEY", "\"x\"");
}

}  // namespace
}  // namespace ridgefill::formats
