// ridgefill bench ttft|prefill|decode: flags; the measurements are in bench_*.cc.
#include <CLI/CLI.hpp>
#include <memory>

#include "services/cli/bench.h"
#include "services/cli/command.h"

namespace ridgefill::cli {
namespace {

using Bench = absl::Status (*)(const std::string& home, const BenchFlags& flags);

std::shared_ptr<BenchFlags> AddBenchmark(CLI::App& bench, Context& context, const char* name,
                                         const char* help, Bench run) {
  CLI::App* command = bench.add_subcommand(name, help);
  auto flags = std::make_shared<BenchFlags>();
  AddModelFlags(*command, flags->model);
  command->add_option("--lengths", flags->lengths, "Prompt lengths in tokens")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--modes", flags->modes, "EXACT, SPEED")->delimiter(',')->capture_default_str();
  command->add_option("--reps", flags->reps, "Counted runs per line, after one that warms up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--tail", flags->tail, "Rows that run exactly; default: the map set's");
  command->callback(
      [&context, flags, run] { context.run = [&context, flags, run] { return run(context.home, *flags); }; });
  return flags;
}

CLI::App& Command(CLI::App& bench, const char* name) { return *bench.get_subcommand(name); }

}  // namespace

void AddBench(CLI::App& app, Context& context) {
  CLI::App* bench = app.add_subcommand("bench",
                                       "Measures and prints one JSON line per length, mode and batch:\n"
                                       "{bench, model, mode, split, tail, prompt_tokens, batch, ms_median, "
                                       "ms_min, tokens_per_s, threads, isa}");
  bench->require_subcommand(1);
  auto ttft = AddBenchmark(*bench, context, "ttft", "Time to first token through the services", BenchTtft);
  Command(*bench, "ttft")
      .add_option("--target", ttft->target, "Router to measure; default: all three services in this process")
      ->type_name("HOST:PORT");
  auto prefill =
      AddBenchmark(*bench, context, "prefill", "One prompt through the prefill engine", BenchPrefill);
  Command(*bench, "prefill")
      .add_option("--chunk_tokens", prefill->chunk, "Rows of one step, a multiple of 64")
      ->capture_default_str();
  auto decode =
      AddBenchmark(*bench, context, "decode", "Tokens per second of the decode engine", BenchDecode);
  Command(*bench, "decode")
      .add_option("--batch", decode->batches, "Requests that generate together")
      ->delimiter(',')
      ->capture_default_str();
  Command(*bench, "decode")
      .add_option("--generate", decode->generate, "Tokens per request")
      ->check(CLI::Range(2, 100000))
      ->capture_default_str();
}

}  // namespace ridgefill::cli
