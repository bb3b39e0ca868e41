#include "services/cli/bench.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace ridgefill::cli {
namespace {

constexpr char kProse[] =
    "The harbour lay quiet under a thin fog when the first boats came in, and the men who had waited on the "
    "quay since "
    "before dawn began to call to each other across the water. Nobody spoke of the night that had passed. "
    "Baskets were "
    "handed up, ropes were made fast, and a boy with a lantern went from boat to boat and wrote down in a "
    "small book what "
    "each had brought. By the time the sun stood over the roofs the market was full: women from the upper "
    "town bargained "
    "over herring and mackerel, a cart with two grey horses stood in everybody's way, and an old man sold "
    "bread from a "
    "window as he had done for forty years. ";

}  // namespace

absl::StatusOr<std::vector<ridge::Mode>> ParseModes(const std::vector<std::string>& names) {
  std::vector<ridge::Mode> modes;
  for (const std::string& name : names) {
    if (name == "EXACT") {
      modes.push_back(ridge::Mode::kExact);
    } else if (name == "SPEED") {
      modes.push_back(ridge::Mode::kSpeed);
    } else {
      return base::FieldError("--modes", "MODE_UNKNOWN", absl::StrCat("'", name, "'; allowed: EXACT, SPEED"));
    }
  }
  return modes;
}

absl::StatusOr<std::vector<int32_t>> BenchPrompt(const tokenizer::Tokenizer& tokenizer, int64_t tokens) {
  RF_ASSIGN_OR_RETURN(const std::vector<int32_t> prose, tokenizer.Encode(kProse, {.add_special = false}));
  std::vector<int32_t> prompt(tokens);
  for (int64_t i = 0; i < tokens; ++i) prompt[i] = prose[i % prose.size()];
  return prompt;
}

void PrintLine(const BenchLine& line) {
  std::vector<absl::Duration> runs = line.runs;
  std::sort(runs.begin(), runs.end());
  const absl::Duration median = runs[runs.size() / 2];
  nlohmann::ordered_json json;
  json["bench"] = line.bench;
  json["model"] = line.model;
  json["mode"] = line.mode;
  json["split"] = line.split;
  json["tail"] = line.tail;
  json["prompt_tokens"] = line.prompt_tokens;
  json["batch"] = line.batch;
  json["ms_median"] = absl::ToDoubleMilliseconds(median);
  json["ms_min"] = absl::ToDoubleMilliseconds(runs.front());
  json["tokens_per_s"] = static_cast<double>(line.tokens) / absl::ToDoubleSeconds(median);
  json["threads"] = line.threads;
  json["isa"] = line.isa;
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
}

absl::StatusOr<common::LoadedModel> LoadForBench(const std::string& home, const BenchFlags& flags,
                                                 bool for_decode) {
  const int64_t longest = *std::max_element(flags.lengths.begin(), flags.lengths.end());
  const int most = for_decode ? *std::max_element(flags.batches.begin(), flags.batches.end()) : 1;
  common::LoadModelOptions load;
  load.home = home;
  load.source = flags.model.source;
  load.backend = flags.model.backend;
  load.for_decode = for_decode;
  load.context_tokens = longest + (for_decode ? flags.generate : 0);
  load.kv_cache_contexts = most + 2;
  return common::LoadModel(load);
}

absl::StatusOr<ridge::FillDecision> BenchDecision(const common::LoadedModel& model, const BenchFlags& flags,
                                                  ridge::Mode mode, int64_t tokens) {
  ridge::FillDecision decision;
  decision.mode = mode;
  decision.reason = "REQUESTED";
  if (mode == ridge::Mode::kExact) {
    decision.late_pass = ridge::LatePassAt::kPrefill;
    return decision;
  }
  if (model.maps == nullptr) {
    return base::Error(absl::StatusCode::kFailedPrecondition, "NO_MAPS",
                       "mode SPEED needs a map set: give --maps or fit one with `ridgefill fit`");
  }
  decision.split = model.maps->manifest().split;
  decision.tail = flags.tail > 0 ? flags.tail : model.maps->manifest().tail_default;
  if (tokens < decision.tail + model.maps->manifest().min_bulk) {
    return base::FieldError("--lengths", "SHORT_PROMPT",
                            absl::StrCat(tokens, " tokens are too few to fill; SPEED needs at least ",
                                         decision.tail + model.maps->manifest().min_bulk));
  }
  return decision;
}

}  // namespace ridgefill::cli
