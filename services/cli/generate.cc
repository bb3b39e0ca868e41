// `ridgefill generate`.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "engine/base/file.h"
#include "engine/base/status.h"
#include "engine/tokenizer/utf8.h"
#include "google/protobuf/util/json_util.h"
#include "services/cli/client.h"
#include "services/cli/command.h"
#include "services/common/convert.h"

namespace ridgefill::cli {
namespace {

struct GenerateFlags {
  std::string target;
  ModelFlags model;
  std::string mode = "AUTO";
  std::string selector;
  std::optional<float> share;
  std::optional<int> split;
  std::string prompt, prompt_file, system;
  bool chat = false, raw = false, json = false;
  std::optional<int64_t> max_tokens;
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int> top_k;
  std::optional<uint64_t> seed;
  int min_tokens = 0;
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

// One answer, put together again from its messages.
struct Answered {
  v1::Started started;
  std::string text;
  v1::Finished finished;
};

// A file in another encoding is common enough for a message that knows of files.
absl::StatusOr<std::string> CheckUtf8(const std::string& from, std::string text) {
  const auto offset = tokenizer::FindInvalidUtf8(text);
  if (!offset.has_value()) return text;
  return absl::InvalidArgumentError(
      absl::StrCat(from, " is not valid UTF-8 at byte ", *offset, "; `iconv -t UTF-8` converts text files"));
}

absl::StatusOr<std::string> ReadPrompt(const GenerateFlags& flags) {
  if (!flags.prompt.empty() && !flags.prompt_file.empty()) {
    return absl::InvalidArgumentError("give either --prompt or --prompt_file, not both");
  }
  if (!flags.prompt.empty()) return CheckUtf8("--prompt", flags.prompt);
  if (flags.prompt_file == "-") {
    return CheckUtf8("standard input", std::string(std::istreambuf_iterator<char>(std::cin), {}));
  }
  if (!flags.prompt_file.empty()) {
    RF_ASSIGN_OR_RETURN(std::string text, base::ReadFile(flags.prompt_file));
    return CheckUtf8(absl::StrCat("--prompt_file ", flags.prompt_file), std::move(text));
  }
  return absl::InvalidArgumentError("one of --prompt, --prompt_file or --chat is required");
}

absl::Status AddSelection(const GenerateFlags& flags, v1::GenerateRequest& request) {
  if (flags.share.has_value()) request.mutable_selection()->set_share(*flags.share);
  if (flags.selector.empty()) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const v1::Selector selector, ParseSelector(flags.selector));
  request.mutable_selection()->set_selector(selector);
  return absl::OkStatus();
}

absl::StatusOr<v1::GenerateRequest> MakeRequest(const GenerateFlags& flags) {
  v1::GenerateRequest request;
  v1::FillMode mode;
  if (!v1::FillMode_Parse("FILL_MODE_" + absl::AsciiStrToUpper(flags.mode), &mode)) {
    return absl::InvalidArgumentError("--mode must be AUTO, EXACT, SPEED or QUALITY, got \"" + flags.mode +
                                      "\"");
  }
  request.set_mode(mode);
  RF_RETURN_IF_ERROR(AddSelection(flags, request));
  if (flags.split.has_value()) request.set_split(*flags.split);
  auto& sampling = *request.mutable_sampling();
  if (flags.temperature.has_value()) sampling.set_temperature(*flags.temperature);
  if (flags.top_k.has_value()) sampling.set_top_k(*flags.top_k);
  if (flags.top_p.has_value()) sampling.set_top_p(*flags.top_p);
  if (flags.min_p.has_value()) sampling.set_min_p(*flags.min_p);
  if (flags.repetition_penalty.has_value()) sampling.set_repetition_penalty(*flags.repetition_penalty);
  if (flags.presence_penalty.has_value()) sampling.set_presence_penalty(*flags.presence_penalty);
  if (flags.frequency_penalty.has_value()) sampling.set_frequency_penalty(*flags.frequency_penalty);
  if (flags.seed.has_value()) sampling.set_seed(*flags.seed);
  auto& stop = *request.mutable_stop();
  if (flags.max_tokens.has_value()) stop.set_max_tokens(*flags.max_tokens);
  stop.set_min_tokens(flags.min_tokens);
  stop.mutable_stop_strings()->Add(flags.stop.begin(), flags.stop.end());
  stop.set_ignore_eos(flags.ignore_eos);
  return request;
}

absl::StatusOr<Answered> Ask(Client& client, const v1::GenerateRequest& request, bool print) {
  Answered answered;
  RF_RETURN_IF_ERROR(client.Generate(request, [&](const v1::GenerateResponse& message) {
    if (message.has_started()) answered.started = message.started();
    if (message.has_finished()) answered.finished = message.finished();
    if (!message.has_delta()) return;
    answered.text += message.delta().text();
    if (!print) return;
    std::fwrite(message.delta().text().data(), 1, message.delta().text().size(), stdout);
    std::fflush(stdout);
  }));
  if (print) std::fputs("\n", stdout);
  return answered;
}

std::string Report(const Answered& answered) {
  const auto& fill = answered.started.fill();
  const auto& timing = answered.finished.timing();
  const auto& usage = answered.finished.usage();
  const double rest = timing.total() - timing.ttft();
  const double rate = rest > 0 ? (usage.generated_tokens() - 1) / rest : 0;
  return absl::StrFormat(
      "[%s, %s: split %d, tail %d; %d of %d prompt rows filled, %d exact (%d outliers, %d selected), %d "
      "cached, wire form %s]\n"
      "[time to first token %.3f s = admission %.3f + route %.3f + decode queue %.3f + prefill queue %.3f + "
      "prefill %.3f + transfer %.3f + late pass %.3f + first step %.3f]\n"
      "[%d tokens, %.1f tokens/s, total %.3f s, %s, seed %d]\n",
      absl::StripPrefix(v1::FillMode_Name(fill.mode()), "FILL_MODE_"), fill.reason(), fill.split(),
      fill.tail(), fill.filled(), usage.prompt_tokens(), fill.exact(), fill.outliers(), fill.selected(),
      fill.cached(), common::WireFormName(fill.wire_form()), timing.ttft(), timing.admission_wait(),
      timing.route(), timing.decode_queue(), timing.prefill_queue(), timing.prefill_compute(),
      timing.transfer_exposed(), timing.late_pass(), timing.first_step(), usage.generated_tokens(), rate,
      timing.total(), absl::StripPrefix(v1::FinishReason_Name(answered.finished.reason()), "FINISH_REASON_"),
      answered.started.seed());
}

// {"started": .., "text": .., "finished": ..}, with the fields of the API's messages.
absl::Status PrintJson(const Answered& answered) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  v1::Delta delta;
  delta.set_text(answered.text);
  std::string started, text, finished;
  (void)google::protobuf::util::MessageToJsonString(answered.started, &started, options);
  google::protobuf::util::JsonPrintOptions only_text;
  (void)google::protobuf::util::MessageToJsonString(delta, &text, only_text);  // {"text": ".."}, or {}
  (void)google::protobuf::util::MessageToJsonString(answered.finished, &finished, options);
  text = text == "{}" ? "\"text\":\"\"" : text.substr(1, text.size() - 2);
  std::printf("{\"started\":%s,%s,\"finished\":%s}\n", started.c_str(), text.c_str(), finished.c_str());
  return absl::OkStatus();
}

absl::Status Once(Client& client, const GenerateFlags& flags) {
  RF_ASSIGN_OR_RETURN(std::string prompt, ReadPrompt(flags));
  RF_ASSIGN_OR_RETURN(v1::GenerateRequest request, MakeRequest(flags));
  RF_ASSIGN_OR_RETURN(const v1::ModelInfo model, client.Model());
  if (flags.raw || !model.chat()) {
    request.set_text(std::move(prompt));
  } else {
    auto& chat = *request.mutable_chat();
    if (!flags.system.empty()) {
      chat.add_messages()->set_role("system");
      chat.mutable_messages(0)->set_content(flags.system);
    }
    auto* message = chat.add_messages();
    message->set_role("user");
    message->set_content(std::move(prompt));
  }
  RF_ASSIGN_OR_RETURN(const Answered answered, Ask(client, request, !flags.json));
  if (flags.json) return PrintJson(answered);
  std::fputs(Report(answered).c_str(), stderr);
  return absl::OkStatus();
}

void AddMessage(const char* role, const std::string& content, v1::ChatPrompt& chat) {
  auto* message = chat.add_messages();
  message->set_role(role);
  message->set_content(content);
}

absl::Status Converse(Client& client, const GenerateFlags& flags) {
  RF_ASSIGN_OR_RETURN(v1::GenerateRequest request, MakeRequest(flags));
  auto& chat = *request.mutable_chat();
  if (!flags.system.empty()) AddMessage("system", flags.system, chat);
  std::fputs("Type a message and press Enter; end with Ctrl-D.\n", stderr);
  std::string line;
  while (true) {
    std::fputs("> ", stderr);
    if (!std::getline(std::cin, line)) break;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    AddMessage("user", line, chat);
    auto answered = Ask(client, request, /*print=*/true);
    if (!answered.ok()) {
      // One refused message (too long, say) need not end the conversation.
      std::fprintf(stderr, "%s\n", std::string(answered.status().message()).c_str());
      if (answered.status().code() == absl::StatusCode::kUnavailable) return answered.status();
      chat.mutable_messages()->RemoveLast();
      continue;
    }
    std::fputs(Report(*answered).c_str(), stderr);
    AddMessage("assistant", answered->text, chat);
  }
  std::fputs("\n", stderr);
  return absl::OkStatus();
}

void AddFlags(CLI::App& command, GenerateFlags& flags) {
  command
      .add_option("--target", flags.target,
                  "A running router or `ridgefill serve`; without it the model is loaded here")
      ->type_name("HOST:PORT");
  command
      .add_option("--mode", flags.mode, "AUTO, EXACT, QUALITY or SPEED: how exactly the prompt is prefilled")
      ->capture_default_str()
      ->type_name("MODE");
  command
      .add_option("--share", flags.share,
                  "QUALITY: most of the rows before the tail that it may select (default: the server's)")
      ->type_name("X");
  command
      .add_option("--split", flags.split,
                  "Split of AUTO, SPEED and QUALITY, one of the model's map sets' (default: the server's)")
      ->type_name("S");
  command
      .add_option("--selector", flags.selector,
                  "QUALITY: attention (default) or probe; random, rarity or none to compare with")
      ->type_name("NAME");
  const char* group = "Prompt";
  command.add_option("--prompt", flags.prompt, "The prompt")->type_name("TEXT")->group(group);
  command.add_option("--prompt_file", flags.prompt_file, "The prompt from a file; - reads standard input")
      ->type_name("FILE")
      ->group(group);
  command.add_option("--system", flags.system, "System message of the conversation")
      ->type_name("TEXT")
      ->group(group);
  command.add_flag("--chat", flags.chat, "Hold a conversation: one message a line")->group(group);
  command.add_flag("--raw", flags.raw, "Continue the prompt as it stands, without the model's chat template")
      ->group(group);
  group = "Answer";
  command.add_option("--max_tokens", flags.max_tokens, "Default: what is left of the context")
      ->type_name("N")
      ->group(group);
  command.add_option("--min_tokens", flags.min_tokens, "The answer does not end before")
      ->type_name("N")
      ->group(group);
  command.add_option("--stop", flags.stop, "The answer ends before this text; may be repeated")
      ->type_name("TEXT")
      ->group(group);
  command.add_flag("--ignore_eos", flags.ignore_eos, "The model's own end does not end the answer")
      ->group(group);
  command.add_flag("--json", flags.json, "Print one JSON object at the end instead of streaming text")
      ->group(group);
  group = "Sampling";
  command.add_option("--temperature", flags.temperature, "0 is greedy (default 1)")
      ->type_name("X")
      ->group(group);
  command.add_option("--top_k", flags.top_k, "Only the k most likely tokens (default 0: off)")
      ->type_name("K")
      ->group(group);
  command.add_option("--top_p", flags.top_p, "Only the most likely tokens of this mass (default 1)")
      ->type_name("P")
      ->group(group);
  command.add_option("--min_p", flags.min_p, "Only tokens this likely relative to the best (default 0)")
      ->type_name("P")
      ->group(group);
  command.add_option("--repetition_penalty", flags.repetition_penalty, "Default 1")
      ->type_name("X")
      ->group(group);
  command.add_option("--presence_penalty", flags.presence_penalty, "Default 0")->type_name("X")->group(group);
  command.add_option("--frequency_penalty", flags.frequency_penalty, "Default 0")
      ->type_name("X")
      ->group(group);
  command.add_option("--seed", flags.seed, "Makes sampling repeatable (default: drawn, and printed)")
      ->type_name("N")
      ->group(group);
  flags.model.AddTo(command);
}

}  // namespace

void AddGenerate(CLI::App& app, Run& run) {
  CLI::App* const command = app.add_subcommand("generate", "Answer one prompt, or hold a conversation");
  command->footer(
      "The answer goes to standard output as it comes; how the prompt was prefilled and where the time went "
      "goes to\n"
      "standard error.\n\n"
      "Examples\n"
      "  ridgefill generate --model smollm2-135m-instruct --prompt 'Name three rivers.'\n"
      "  ridgefill generate --target 127.0.0.1:7400 --mode SPEED --prompt_file report.txt --max_tokens 100\n"
      "  ridgefill generate --target 127.0.0.1:7400 --chat");
  const auto flags = std::make_shared<GenerateFlags>();
  AddFlags(*command, *flags);
  command->callback([flags, &run] {
    run = [flags](const Environment& environment) -> absl::Status {
      RF_ASSIGN_OR_RETURN(const auto client, Client::Connect(flags->target, flags->model, environment.home));
      return flags->chat ? Converse(*client, *flags) : Once(*client, *flags);
    };
  });
}

}  // namespace ridgefill::cli
