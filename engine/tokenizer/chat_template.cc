#include "engine/tokenizer/chat_template.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/status.h"
#include "engine/formats/quote.h"
#include "engine/tokenizer/jinja_outline.h"
#include "engine/tokenizer/utf8.h"

namespace ridgefill::tokenizer {
namespace {

constexpr absl::string_view kSupported =
    "supported are ChatML as SmolLM2, Qwen2 and Qwen2.5 have it, and the headers of Llama 3, 3.1 and 3.2; "
    "plain text and token ids work with any model";

// What strftime_now-less Jinja gets from the Llama 3.1 and 3.2 templates.
constexpr absl::string_view kLlamaDate = "26 Jul 2024";

// Conditions whose value is fixed here: there are no tools, roles are system, user and assistant, and Hugging
// Face passes `tools` (none) and `add_generation_prompt` always.
struct KnownCondition {
  absl::string_view text;
  int value;
};
constexpr KnownCondition kKnownConditions[] = {
    {"not add_generation_prompt is defined", 0},
    {"tools", 0},
    {"tools is not none", 0},
    {"not tools is defined", 0},
    {"custom_tools is defined", 0},
    {"builtin_tools is defined", 0},
    {"builtin_tools is defined or tools is not none", 0},
    {"tools is not none and not tools_in_user_message", 0},
    {"tools_in_user_message and not tools is none", 0},
    {"not tools_in_user_message is defined", 1},
    {"not date_string is defined", 1},
    {"strftime_now is defined", 1},
    {"not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message)", 1},
    // Qwen2.5 reaches these two only for a turn with tool calls and for a tool's answer.
    {"message.role == 'assistant'", 0},
    {"message.role == 'tool'", 0},
};

int KnownValue(absl::string_view condition) {
  for (const KnownCondition& known : kKnownConditions) {
    if (known.text == condition) return known.value;
  }
  return -1;
}

// A cursor over the outline. Every Take* advances when the line is as asked.
class Reader {
 public:
  explicit Reader(const std::vector<std::string>& lines) : lines_(lines) { SkipToolSettings(); }

  bool Take(absl::string_view line) {
    if (next_ == lines_.size() || lines_[next_] != line) return false;
    Advance();
    return true;
  }
  bool TakeAll(std::initializer_list<absl::string_view> lines) {
    for (absl::string_view line : lines) {
      if (!Take(line)) return false;
    }
    return true;
  }
  // A line between `prefix` and `suffix`; `middle` gets what stands between.
  bool TakeBetween(absl::string_view prefix, absl::string_view suffix, std::string& middle) {
    if (next_ == lines_.size()) return false;
    absl::string_view line = lines_[next_];
    if (line.size() < prefix.size() + suffix.size()) return false;
    if (!absl::ConsumePrefix(&line, prefix) || !absl::ConsumeSuffix(&line, suffix)) return false;
    middle = std::string(line);
    Advance();
    return true;
  }
  bool AtEnd() const { return next_ == lines_.size(); }
  size_t position() const { return next_; }

 private:
  void Advance() {
    ++next_;
    SkipToolSettings();
  }
  void SkipToolSettings() {
    while (next_ < lines_.size() && absl::StartsWith(lines_[next_], "set tools_in_user_message =")) ++next_;
  }
  const std::vector<std::string>& lines_;
  size_t next_ = 0;
};

constexpr absl::string_view kMlSystemOpen = "text <|im_start|>system\n";
constexpr absl::string_view kMlClose = "<|im_end|>\n";

bool TakeMlMessage(Reader& in) {
  return in.TakeAll(
      {"text <|im_start|>", "print message.role", "text \n", "print message.content", "text <|im_end|>\n"});
}

bool TakeMlPrompt(Reader& in) {
  return in.TakeAll({"if add_generation_prompt", "text <|im_start|>assistant\n", "endif"}) && in.AtEnd();
}

// SmolLM2, Qwen2, and the plain form without a default.
bool ReadMlLoop(Reader& in, ChatFormat& format) {
  if (!in.Take("for message in messages")) return false;
  if (in.Take("if loop.first and messages[0].role != 'system'")) {
    if (!in.TakeBetween(kMlSystemOpen, kMlClose, format.default_system) || !in.Take("endif")) return false;
    format.has_default_system = true;
  }
  return TakeMlMessage(in) && in.Take("endfor") && TakeMlPrompt(in);
}

// Qwen2.5.
bool ReadMlSystemFirst(Reader& in, ChatFormat& format) {
  if (!in.TakeAll({"if messages[0].role == 'system'", kMlSystemOpen, "print messages[0].content",
                   "text <|im_end|>\n"})) {
    return false;
  }
  if (in.Take("else")) {
    if (!in.TakeBetween(kMlSystemOpen, kMlClose, format.default_system)) return false;
    format.has_default_system = true;
  }
  return in.TakeAll({"endif", "for message in messages",
                     "if (message.role == 'user') or (message.role == 'system' and not loop.first) or "
                     "(message.role == 'assistant' and not message.tool_calls)"}) &&
         TakeMlMessage(in) && in.TakeAll({"endif", "endfor"}) && TakeMlPrompt(in);
}

constexpr absl::string_view kLlamaPrompt = "text <|start_header_id|>assistant<|end_header_id|>\n\n";

// The first Llama 3.
bool ReadLlama3(Reader& in, ChatFormat& format) {
  format.family = ChatFormat::Family::kLlama3;
  format.starts_with_bos = true;
  const bool renamed = in.Take("set loop_messages = messages");
  if (!in.TakeAll({renamed ? "for message in loop_messages" : "for message in messages",
                   "set content = '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + "
                   "message.content | trim + '<|eot_id|>'",
                   "if loop.index0 == 0", "set content = bos_token + content", "endif", "print content",
                   "endfor"})) {
    return false;
  }
  format.prompt_always = in.Take(kLlamaPrompt);
  if (format.prompt_always) return in.AtEnd();
  return in.TakeAll({"if add_generation_prompt", kLlamaPrompt, "endif"}) && in.AtEnd();
}

// Llama 3.1 (a fixed date) and 3.2 (today's).
bool ReadLlama31(Reader& in, ChatFormat& format) {
  format.family = ChatFormat::Family::kLlama3;
  format.starts_with_bos = format.writes_dates = true;
  if (!in.Take("print bos_token")) return false;
  format.date_is_today = in.Take("set date_string = strftime_now ('%d %b %Y')");
  if (format.date_is_today) format.date = std::string(kLlamaDate);
  if (!format.date_is_today && !in.TakeBetween("set date_string = '", "'", format.date)) return false;
  if (!in.TakeAll({"if messages[0].role == 'system'", "set system_message = messages[0].content | trim",
                   "set messages = messages[1:]", "else"}) ||
      !in.TakeBetween("set system_message = '", "'", format.default_system)) {
    return false;
  }
  return in.TakeAll(
             {"endif",
              "text <|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
              "Today Date: ",
              "print date_string", "text \n\n", "print system_message", "text <|eot_id|>",
              "for message in messages", "text <|start_header_id|>", "print message.role",
              "text <|end_header_id|>\n\n", "print message.content | trim", "text <|eot_id|>", "endfor",
              "if add_generation_prompt", kLlamaPrompt, "endif"}) &&
         in.AtEnd();
}

// Whose template it looks like, for the error message only.
constexpr std::pair<absl::string_view, absl::string_view> kOtherFamilies[] = {
    {"<start_of_turn>", "Gemma"},
    {"[INST]", "Mistral or Llama 2"},
    {"<|channel|>", "gpt-oss"},
    {"<think>", "a reasoning model"},
    {"<|assistant|>", "Phi-3 or Zephyr"},
    {"<|im_start|>", "a ChatML variant"},
    {"<|start_header_id|>", "a Llama 3 variant"},
};

std::string FamilyHint(absl::string_view jinja) {
  for (const auto& [marker, family] : kOtherFamilies) {
    if (absl::StrContains(jinja, marker)) return absl::StrCat("it looks like that of ", family, ", and ");
  }
  return "";
}

absl::Status Unsupported(absl::string_view found) {
  return base::Error(absl::StatusCode::kFailedPrecondition, "CHAT_TEMPLATE_UNSUPPORTED",
                     absl::StrCat("the model's chat template is not supported: ", found, "; ", kSupported));
}

// Python's str.strip(), which Jinja's trim is.
absl::string_view Strip(absl::string_view text) {
  const auto is_space = [](uint32_t c) { return IsWhiteSpace(c) || (c >= 0x1C && c <= 0x1F); };
  while (!text.empty()) {
    const Utf8Step first = NextUtf8(text);
    if (first.kind != Utf8Step::kValid || !is_space(first.code_point)) break;
    text.remove_prefix(first.length);
  }
  while (!text.empty()) {
    const size_t start = LastUtf8Start(text);
    const Utf8Step last = NextUtf8(text.substr(start));
    if (last.kind != Utf8Step::kValid || !is_space(last.code_point)) break;
    text = text.substr(0, start);
  }
  return text;
}

absl::Status CheckMessages(absl::Span<const ChatMessage> messages) {
  if (messages.empty())
    return base::FieldError("messages", "CHAT_EMPTY", "a chat needs at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "system" || role == "user" || role == "assistant") continue;
    return base::FieldError(absl::StrCat("messages[", i, "].role"), "CHAT_ROLE_UNSUPPORTED",
                            absl::StrCat("must be system, user or assistant, got ", formats::Quote(role)));
  }
  return absl::OkStatus();
}

void AddMarkup(std::vector<ChatPiece>& out, std::string text) { out.push_back({true, std::move(text)}); }
void AddContent(std::vector<ChatPiece>& out, absl::string_view text) {
  out.push_back({false, std::string(text)});
}

std::vector<ChatPiece> RenderChatMl(const ChatFormat& format, absl::Span<const ChatMessage> messages,
                                    const ChatOptions& options) {
  std::vector<ChatPiece> out;
  if (format.has_default_system && messages[0].role != "system") {
    AddMarkup(out, absl::StrCat("<|im_start|>system\n", format.default_system, kMlClose));
  }
  for (const ChatMessage& message : messages) {
    AddMarkup(out, absl::StrCat("<|im_start|>", message.role, "\n"));
    AddContent(out, message.content);
    AddMarkup(out, std::string(kMlClose));
  }
  if (options.add_generation_prompt) AddMarkup(out, "<|im_start|>assistant\n");
  return out;
}

void AddLlamaHeader(absl::string_view role, std::vector<ChatPiece>& out) {
  AddMarkup(out, absl::StrCat("<|start_header_id|>", role, "<|end_header_id|>\n\n"));
}

std::vector<ChatPiece> RenderLlama3(const ChatFormat& format, absl::string_view bos_token,
                                    absl::Span<const ChatMessage> messages, const ChatOptions& options) {
  std::vector<ChatPiece> out;
  AddMarkup(out, std::string(bos_token));
  if (format.writes_dates) {
    const bool today = format.date_is_today && !options.date.empty();
    AddLlamaHeader("system", out);
    AddMarkup(out, "Cutting Knowledge Date: December 2023\nToday Date: ");
    AddContent(out, today ? options.date : format.date);
    AddMarkup(out, "\n\n");
    if (messages[0].role == "system") {
      AddContent(out, Strip(messages[0].content));
      messages.remove_prefix(1);
    } else {
      AddMarkup(out, format.default_system);
    }
    AddMarkup(out, "<|eot_id|>");
  }
  for (const ChatMessage& message : messages) {
    AddLlamaHeader(message.role, out);
    AddContent(out, Strip(message.content));
    AddMarkup(out, "<|eot_id|>");
  }
  if (options.add_generation_prompt || format.prompt_always) AddLlamaHeader("assistant", out);
  return out;
}

}  // namespace

absl::StatusOr<ChatFormat> RecogniseChatTemplate(absl::string_view jinja) {
  if (jinja.empty()) return Unsupported("it has none");
  const absl::StatusOr<std::vector<std::string>> lines = OutlineJinja(jinja, KnownValue);
  if (!lines.ok()) return Unsupported(lines.status().message());
  size_t furthest = 0;
  for (auto* read : {ReadMlLoop, ReadMlSystemFirst, ReadLlama3, ReadLlama31}) {
    ChatFormat format;
    Reader reader(*lines);
    if (read(reader, format)) return format;
    furthest = std::max(furthest, reader.position());
  }
  const std::string where =
      furthest == lines->size()
          ? std::string("it ends early")
          : absl::StrCat("it is not known from ", formats::Quote((*lines)[furthest]), " on");
  return Unsupported(absl::StrCat(FamilyHint(jinja), where));
}

absl::StatusOr<std::vector<ChatPiece>> RenderChat(const ChatFormat& format, absl::string_view bos_token,
                                                  absl::Span<const ChatMessage> messages,
                                                  const ChatOptions& options) {
  RF_RETURN_IF_ERROR(CheckMessages(messages));
  if (format.family == ChatFormat::Family::kChatMl) return RenderChatMl(format, messages, options);
  return RenderLlama3(format, bos_token, messages, options);
}

}  // namespace ridgefill::tokenizer
