// What the benchmarks share: the request matrix, the prompt, and the JSON line of one measurement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/ridge/fill_plan.h"
#include "engine/tokenizer/tokenizer.h"
#include "services/cli/command.h"
#include "services/common/loaded_model.h"

namespace ridgefill::cli {

struct BenchFlags {
  ModelFlags model;
  std::vector<int64_t> lengths = {2048};
  std::vector<std::string> modes = {"EXACT", "SPEED"};
  std::vector<int> batches = {1};  // decode
  int64_t generate = 64;           // decode: tokens per request
  int reps = 5;
  int tail = 0;         // 0: the map set's default
  int64_t chunk = 512;  // prefill: rows of one step
  std::string target;   // ttft: router to measure; empty: a trio in this process
};

absl::StatusOr<std::vector<ridge::Mode>> ParseModes(const std::vector<std::string>& names);

// English prose of exactly `tokens` tokens, the same for every run.
absl::StatusOr<std::vector<int32_t>> BenchPrompt(const tokenizer::Tokenizer& tokenizer, int64_t tokens);

// One line: {bench, model, mode, split, tail, prompt_tokens, batch, ms_median, ms_min, tokens_per_s, threads,
// isa}.
struct BenchLine {
  std::string bench, model, mode;
  int split = 0, tail = 0;
  int64_t prompt_tokens = 0;
  int batch = 1;
  std::vector<absl::Duration> runs;
  int64_t tokens = 0;  // that one run worked through: tokens_per_s = tokens / median
  int threads = 0;
  std::string isa;
};
void PrintLine(const BenchLine& line);

absl::StatusOr<common::LoadedModel> LoadForBench(const std::string& home, const BenchFlags& flags,
                                                 bool for_decode);
// FAILED_PRECONDITION for a filled mode without maps, INVALID_ARGUMENT for a prompt too short to be filled.
absl::StatusOr<ridge::FillDecision> BenchDecision(const common::LoadedModel& model, const BenchFlags& flags,
                                                  ridge::Mode mode, int64_t tokens);

absl::Status BenchPrefill(const std::string& home, const BenchFlags& flags);
absl::Status BenchDecode(const std::string& home, const BenchFlags& flags);
absl::Status BenchTtft(const std::string& home, const BenchFlags& flags);

}  // namespace ridgefill::cli
