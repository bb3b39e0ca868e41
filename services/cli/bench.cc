// `ridgefill bench`: flags, output, and the prompts.
#include "services/cli/bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "engine/base/rng.h"
#include "nlohmann/json.hpp"

namespace ridgefill::cli {

void Print(BenchLine line) {
  std::sort(line.ms.begin(), line.ms.end());
  const size_t half = line.ms.size() / 2;
  const double median = line.ms.size() % 2 == 1 ? line.ms[half] : (line.ms[half - 1] + line.ms[half]) / 2;
  const auto round = [](double x) { return std::stod(absl::StrFormat("%.4g", x)); };
  using Json = nlohmann::ordered_json;
  const Json out = {{"bench", line.bench},
                    {"model", line.model},
                    {"mode", line.mode},
                    {"selector", line.selector.empty() ? Json() : Json(line.selector)},
                    {"split", line.split},
                    {"tail", line.tail},
                    {"prompt_tokens", line.prompt_tokens},
                    {"selected", line.selected},
                    {"batch", line.batch},
                    {"ms_median", round(median)},
                    {"ms_min", round(line.ms.front())},
                    {"tokens_per_s", round(1000 * line.tokens / median)},
                    {"threads", line.threads > 0 ? Json(line.threads) : Json()},
                    {"isa", line.isa.empty() ? Json() : Json(line.isa)}};
  std::printf("%s\n", out.dump().c_str());
  std::fflush(stdout);
}

std::string BenchText(int words, uint64_t seed) {
  static constexpr absl::string_view kWords[] = {
      "the",    "of",    "and",   "to",    "in",    "a",     "is",    "that",  "for",    "it",    "as",
      "was",    "with",  "be",    "by",    "on",    "not",   "he",    "this",  "are",    "or",    "his",
      "from",   "at",    "which", "but",   "have",  "an",    "had",   "they",  "you",    "were",  "their",
      "one",    "all",   "we",    "can",   "her",   "has",   "there", "been",  "if",     "more",  "when",
      "will",   "would", "who",   "so",    "water", "house", "river", "light", "number", "state", "school",
      "night",  "story", "music", "stone", "field", "green", "early", "small", "large",  "open",  "carry",
      "follow", "learn", "write", "build", "reach", "hold"};
  base::Rng rng(seed);
  std::string text;
  int until_stop = 12;
  for (int i = 0; i < words; ++i) {
    const auto word = kWords[rng.NextBelow(std::size(kWords))];
    text.append(text.empty() ? "" : " ").append(word.data(), word.size());
    if (--until_stop > 0) continue;
    text += ".";
    until_stop = 6 + static_cast<int>(rng.NextBelow(14));
  }
  return text;
}

namespace {

void AddBenchFlags(CLI::App& command, BenchFlags& flags) {
  command.add_option("--lengths", flags.lengths, "Prompt lengths in tokens")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("N,...");
  command.add_option("--modes", flags.modes, "EXACT, QUALITY, SPEED")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("MODE,...");
  command
      .add_option("--split", flags.split,
                  "Of the filled modes, one of the map sets' (default: the server's, or the first set's)")
      ->check(CLI::PositiveNumber)
      ->type_name("S");
  command.add_option("--selector", flags.selector, "Of QUALITY: attention, probe, random, rarity or none")
      ->capture_default_str()
      ->check(CLI::IsMember({"attention", "probe", "random", "rarity", "none"}))
      ->type_name("NAME");
  command.add_option("--reps", flags.reps, "Repetitions, after one that does not count")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  flags.model.AddTo(command);
}

void AddOne(CLI::App& bench, const char* name, const char* description, Run& run,
            absl::Status (*what)(const BenchFlags&, const Environment&)) {
  CLI::App* const command = bench.add_subcommand(name, description);
  const auto flags = std::make_shared<BenchFlags>();
  AddBenchFlags(*command, *flags);
  if (what == &BenchTtft) {
    command
        ->add_option("--target", flags->target,
                     "A running router or `ridgefill serve`; without it all runs here")
        ->type_name("HOST:PORT");
  }
  if (what != &BenchTtft) {
    command->add_option("--tail", flags->tail, "Rows of the tail in SPEED (default: the map set's)")
        ->type_name("T");
  }
  if (what == &BenchDecode) {
    flags->lengths = {512};
    flags->modes = {"EXACT"};
    command->add_option("--batches", flags->batches, "Requests that generate together")
        ->capture_default_str()
        ->delimiter(',')
        ->type_name("B,...");
    command->add_option("--tokens", flags->tokens, "Tokens that each generates")
        ->capture_default_str()
        ->type_name("N");
  }
  command->callback([flags, what, &run] {
    run = [flags, what](const Environment& environment) { return what(*flags, environment); };
  });
}

}  // namespace

void AddBench(CLI::App& app, Run& run) {
  CLI::App* const bench = app.add_subcommand("bench", "Measure speed; prints JSON lines");
  bench->require_subcommand(1);
  bench->footer(
      "Each line: bench, model, mode, selector, split, tail, prompt_tokens, selected, batch, ms_median, "
      "ms_min, "
      "tokens_per_s, "
      "threads, isa.\n"
      "Modes take turns within a repetition, so that a change of the machine's pace meets all of them.\n\n"
      "Examples\n"
      "  ridgefill bench ttft --model smollm2-135m-instruct --lengths 2048,8000 --modes EXACT,SPEED --reps "
      "5\n"
      "  ridgefill bench ttft --target 127.0.0.1:7400 --lengths 8000\n"
      "  ridgefill bench prefill --model smollm2-135m-instruct --lengths 2048 --modes EXACT\n"
      "  ridgefill bench decode --model smollm2-135m-instruct --batches 1,8");
  AddOne(*bench, "ttft", "Time to first token through the services, as a client sees it", run, &BenchTtft);
  AddOne(*bench, "prefill", "A prompt through the prefill engine, frames taken and dropped", run,
         &BenchPrefill);
  AddOne(*bench, "decode", "Tokens out of the decode engine", run, &BenchDecode);
}

}  // namespace ridgefill::cli
