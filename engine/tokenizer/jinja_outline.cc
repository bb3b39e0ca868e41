#include "engine/tokenizer/jinja_outline.h"

#include <cctype>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/status.h"

namespace ridgefill::tokenizer {
namespace {

constexpr absl::string_view kText = "text ";
constexpr absl::string_view kPrint = "print ";

absl::Status Unreadable(absl::string_view what) {
  return base::Error(absl::StatusCode::kInvalidArgument, "CHAT_TEMPLATE_SYNTAX",
                     absl::StrCat("the chat template has ", what));
}

struct Token {
  enum Kind { kWord, kString, kOperator };
  Kind kind;
  std::string text;
};

char Unescape(char c) {
  switch (c) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    default:
      return c;
  }
}

// `code` starts at a quote; takes the string off it.
std::optional<std::string> TakeString(absl::string_view& code) {
  std::string out;
  for (size_t i = 1; i < code.size(); ++i) {
    if (code[i] == code[0]) {
      code.remove_prefix(i + 1);
      return out;
    }
    const bool escape = code[i] == '\\' && i + 1 < code.size();
    out.push_back(escape ? Unescape(code[++i]) : code[i]);
  }
  return std::nullopt;
}

bool IsWordChar(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view code) {
  std::vector<Token> tokens;
  while (true) {
    code = absl::StripLeadingAsciiWhitespace(code);
    if (code.empty()) return tokens;
    if (code[0] == '\'' || code[0] == '"') {
      std::optional<std::string> text = TakeString(code);
      if (!text.has_value()) return Unreadable("a string that does not end");
      tokens.push_back({Token::kString, *std::move(text)});
      continue;
    }
    size_t length = 0;
    while (length < code.size() && IsWordChar(code[length])) ++length;
    const Token::Kind kind = length > 0 ? Token::kWord : Token::kOperator;
    if (length == 0)
      length = code.size() > 1 && code[1] == '=' && absl::StrContains("=!<>", code.substr(0, 1)) ? 2 : 1;
    tokens.push_back({kind, std::string(code.substr(0, length))});
    code.remove_prefix(length);
  }
}

bool IsName(absl::string_view text) {
  if (text.empty()) return false;
  for (char c : text) {
    if (!IsWordChar(c)) return false;
  }
  return true;
}

// x['name'] becomes x.name.
std::vector<Token> WithDots(std::vector<Token> in) {
  std::vector<Token> out;
  for (size_t i = 0; i < in.size(); ++i) {
    const bool subscript = !out.empty() && i + 2 < in.size() && in[i].text == "[" &&
                           in[i].kind == Token::kOperator && in[i + 1].kind == Token::kString &&
                           IsName(in[i + 1].text) && in[i + 2].text == "]" &&
                           (out.back().kind == Token::kWord || out.back().text == "]");
    if (!subscript) {
      out.push_back(std::move(in[i]));
      continue;
    }
    out.push_back({Token::kOperator, "."});
    out.push_back({Token::kWord, in[i + 1].text});
    i += 2;
  }
  return out;
}

std::string Join(const std::vector<Token>& tokens, size_t begin, size_t end) {
  std::string out;
  bool glue = true;  // no space before the next token
  for (size_t i = begin; i < end; ++i) {
    const Token& token = tokens[i];
    const bool op = token.kind == Token::kOperator;
    if (!glue && !(op && absl::StrContains(")].[:,", token.text))) out.push_back(' ');
    if (token.kind == Token::kString) {
      absl::StrAppend(&out, "'", token.text, "'");
    } else {
      out += token.text;
    }
    glue = op && absl::StrContains("([.:", token.text);
  }
  return out;
}

void AddText(absl::string_view text, std::vector<std::string>& lines) {
  if (text.empty()) return;
  if (lines.empty() || !absl::StartsWith(lines.back(), kText)) lines.emplace_back(kText);
  lines.back().append(text.data(), text.size());
}

// {{ a + 'b' + c }}: one line for each part that is joined.
void AddPrint(const std::vector<Token>& tokens, std::vector<std::string>& lines) {
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= tokens.size(); ++i) {
    const bool end = i == tokens.size();
    const bool op = !end && tokens[i].kind == Token::kOperator;
    if (op && absl::StrContains("([{", tokens[i].text)) ++depth;
    if (op && absl::StrContains(")]}", tokens[i].text)) --depth;
    if (!end && !(op && depth == 0 && (tokens[i].text == "+" || tokens[i].text == "~"))) continue;
    if (i == begin + 1 && tokens[begin].kind == Token::kString) {
      AddText(tokens[begin].text, lines);
    } else {
      lines.push_back(absl::StrCat(kPrint, Join(tokens, begin, i)));
    }
    begin = i + 1;
  }
}

// One {{ }}, {% %} or {# #}.
struct Tag {
  char kind = '{';  // '{', '%' or '#'
  bool trims_before = false, trims_after = false;
  absl::string_view code;
  size_t end = 0;  // of the whole tag, in the template
};

// The tag whose "{" is at `begin`. Quotes hide the closing mark, except in a comment.
absl::StatusOr<Tag> ReadTag(absl::string_view jinja, size_t begin) {
  Tag tag;
  tag.kind = jinja[begin + 1];
  const char closing[3] = {tag.kind == '{' ? '}' : tag.kind, '}', 0};
  char quote = 0;
  for (size_t i = begin + 2; i + 1 < jinja.size(); ++i) {
    if (quote != 0) {
      if (jinja[i] == '\\')
        ++i;
      else if (jinja[i] == quote)
        quote = 0;
    } else if (tag.kind != '#' && (jinja[i] == '\'' || jinja[i] == '"')) {
      quote = jinja[i];
    } else if (jinja.substr(i, 2) == closing) {
      tag.code = jinja.substr(begin + 2, i - begin - 2);
      tag.end = i + 2;
      tag.trims_before = absl::ConsumePrefix(&tag.code, "-");
      tag.trims_after = absl::ConsumeSuffix(&tag.code, "-");
      return tag;
    }
  }
  return Unreadable("a tag that does not end");
}

size_t FindTag(absl::string_view jinja, size_t from) {
  for (size_t i = from; i + 1 < jinja.size(); ++i) {
    if (jinja[i] == '{' && absl::StrContains("{%#", jinja.substr(i + 1, 1))) return i;
  }
  return absl::string_view::npos;
}

// lstrip_blocks: spaces between the start of the line and a block tag go away.
absl::string_view WithoutIndent(absl::string_view text, bool at_line_start) {
  const size_t newline = text.rfind('\n');
  if (newline == absl::string_view::npos && !at_line_start) return text;
  const size_t line = newline == absl::string_view::npos ? 0 : newline + 1;
  return absl::StripAsciiWhitespace(text.substr(line)).empty() ? text.substr(0, line) : text;
}

absl::Status AddTag(const Tag& tag, std::vector<std::string>& lines) {
  if (tag.kind == '#') return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(tag.code));
  tokens = WithDots(std::move(tokens));
  if (tag.kind == '{') {
    AddPrint(tokens, lines);
  } else {
    lines.push_back(Join(tokens, 0, tokens.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Lines(absl::string_view jinja) {
  absl::ConsumeSuffix(&jinja, "\n");  // Jinja drops one
  std::vector<std::string> lines;
  bool at_line_start = true, trim = false;
  for (size_t offset = 0;;) {
    const size_t begin = FindTag(jinja, offset);
    absl::string_view text = jinja.substr(offset, begin == absl::string_view::npos ? begin : begin - offset);
    if (trim) text = absl::StripLeadingAsciiWhitespace(text);
    if (begin == absl::string_view::npos) {
      AddText(text, lines);
      return lines;
    }
    RF_ASSIGN_OR_RETURN(const Tag tag, ReadTag(jinja, begin));
    if (tag.trims_before) {
      text = absl::StripTrailingAsciiWhitespace(text);
    } else if (tag.kind != '{') {
      text = WithoutIndent(text, at_line_start);
    }
    AddText(text, lines);
    RF_RETURN_IF_ERROR(AddTag(tag, lines));
    offset = tag.end;
    trim = tag.trims_after;
    at_line_start = tag.kind != '{' && !trim && offset < jinja.size() && jinja[offset] == '\n';
    if (at_line_start) ++offset;  // trim_blocks
  }
}

// Copies lines, dropping branches that are never taken and the `if` around one that always is.
class Pruner {
 public:
  Pruner(const std::vector<std::string>& in, absl::FunctionRef<int(absl::string_view)> known)
      : in_(in), known_(known) {}

  absl::StatusOr<std::vector<std::string>> Run() {
    std::vector<std::string> out;
    RF_RETURN_IF_ERROR(Block(out, 0));
    if (next_ != in_.size()) return Unreadable("blocks that do not balance");
    return out;
  }

 private:
  // Up to the line that closes the enclosing block, which is left for the caller.
  absl::Status Block(std::vector<std::string>& out, int depth) {
    if (depth > kMaxDepth) return Unreadable("blocks nested too deep");
    while (next_ < in_.size()) {
      const absl::string_view line = in_[next_];
      if (line == "endif" || line == "endfor" || line == "else" || absl::StartsWith(line, "elif ")) break;
      ++next_;
      if (absl::StartsWith(line, kText)) {
        AddText(line.substr(kText.size()), out);
      } else if (absl::StartsWith(line, "if ")) {
        RF_RETURN_IF_ERROR(If(line.substr(3), out, depth));
      } else {
        out.emplace_back(line);
        if (!absl::StartsWith(line, "for ")) continue;
        RF_RETURN_IF_ERROR(Block(out, depth + 1));
        RF_RETURN_IF_ERROR(Expect("endfor"));
        out.push_back("endfor");
      }
    }
    return absl::OkStatus();
  }

  absl::Status If(absl::string_view condition, std::vector<std::string>& out, int depth) {
    bool open = false;     // an `if` line is out
    bool settled = false;  // a branch that always holds was reached: the rest is dead
    for (std::optional<absl::string_view> test = condition;;) {
      std::vector<std::string> body;
      RF_RETURN_IF_ERROR(Block(body, depth + 1));
      const int value = !test.has_value() ? 1 : known_(*test);
      if (!settled && value != 0) {
        if (value < 0) {
          out.push_back(absl::StrCat(open ? "elif " : "if ", *test));
        } else if (open) {
          out.push_back("else");
        }
        open |= value < 0;
        settled = value > 0;
        Append(std::move(body), out);
      }
      if (next_ == in_.size()) return Unreadable("an if without its endif");
      const absl::string_view line = in_[next_++];
      if (line == "endif") break;
      if (line == "endfor") return Unreadable("blocks that do not balance");
      test = line == "else" ? std::nullopt : std::optional<absl::string_view>(line.substr(5));
    }
    if (open) out.push_back("endif");
    return absl::OkStatus();
  }

  static void Append(std::vector<std::string> body, std::vector<std::string>& out) {
    for (std::string& line : body) {
      if (absl::StartsWith(line, kText)) {
        AddText(absl::string_view(line).substr(kText.size()), out);
      } else {
        out.push_back(std::move(line));
      }
    }
  }

  absl::Status Expect(absl::string_view line) {
    if (next_ == in_.size() || in_[next_] != line) return Unreadable("blocks that do not balance");
    ++next_;
    return absl::OkStatus();
  }

  static constexpr int kMaxDepth = 32;
  const std::vector<std::string>& in_;
  absl::FunctionRef<int(absl::string_view)> known_;
  size_t next_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> OutlineJinja(absl::string_view jinja,
                                                      absl::FunctionRef<int(absl::string_view)> known) {
  RF_ASSIGN_OR_RETURN(const std::vector<std::string> lines, Lines(jinja));
  return Pruner(lines, known).Run();
}

}  // namespace ridgefill::tokenizer
