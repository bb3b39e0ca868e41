// `ridgefill eval`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/base/status.h"
#include "engine/eval/json_log.h"
#include "engine/eval/measure.h"
#include "engine/eval/needle_measure.h"
#include "engine/eval/splice.h"
#include "engine/eval/text.h"
#include "engine/fit/corpus.h"
#include "services/cli/command.h"
#include "services/cli/commit.h"
#include "services/cli/eval_output.h"
#include "services/common/loaded_model.h"

namespace ridgefill::cli {
namespace {

struct EvalFlags {
  ModelFlags model;
  std::string out, corpus = "tests/data/corpus/heldout", mode = "SPEED";
  std::vector<std::string> fills = {"ridge", "identity"};
  std::vector<int64_t> lengths = {4096}, tails = {512};
  int64_t documents = 60, continuation = 256;
  std::vector<std::string> tasks, evidence = {"bulk"};
  int64_t items = 20;
  uint64_t seed = 7;
};

using Measures = std::vector<std::unique_ptr<eval::Measure>>;

absl::Status Refuse(absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kInvalidArgument, reason, message);
}

// The value of an enumeration whose Name() this is.
template <typename T, size_t kValues>
absl::StatusOr<T> Parse(const char* flag, const std::string& name, const T (&values)[kValues]) {
  std::string allowed;
  for (const T value : values) {
    if (name == eval::Name(value)) return value;
    absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", eval::Name(value));
  }
  return Refuse("EVAL_FLAG", absl::StrCat(flag, " takes ", allowed, "; got \"", name, "\""));
}

absl::StatusOr<std::vector<eval::Variant>> Variants(const EvalFlags& flags) {
  constexpr eval::Fill kFills[] = {eval::Fill::kRidge, eval::Fill::kIdentity};
  if (flags.mode != "SPEED") {
    return Refuse("EVAL_FLAG", absl::StrCat("--mode takes SPEED; got \"", flags.mode, "\""));
  }
  std::vector<eval::Variant> out;
  for (const std::string& name : flags.fills) {
    RF_ASSIGN_OR_RETURN(const eval::Fill fill, Parse("--fills", name, kFills));
    out.push_back({fill});
  }
  return out;
}

// As many documents as were asked for, or as there are.
absl::StatusOr<std::vector<std::vector<int32_t>>> Documents(const tokenizer::Tokenizer& tokenizer,
                                                            const EvalFlags& flags, int64_t length) {
  RF_ASSIGN_OR_RETURN(auto corpus, fit::LoadCorpus(tokenizer, flags.corpus, {length, flags.seed}));
  if (static_cast<int64_t>(corpus.size()) < flags.documents) {
    std::fprintf(stderr, "%s has %zu documents of %lld tokens, %lld were asked for\n", flags.corpus.c_str(),
                 corpus.size(), static_cast<long long>(length), static_cast<long long>(flags.documents));
  }
  corpus.resize(std::min<size_t>(corpus.size(), flags.documents));
  std::vector<std::vector<int32_t>> out;
  for (fit::Document& document : corpus) out.push_back(std::move(document.ids));
  return out;
}

struct TextKinds {
  bool nll = false, distant = false, novel = false;
};

absl::Status AddText(const tokenizer::Tokenizer& tokenizer, const EvalFlags& flags, const TextKinds& kinds,
                     Measures& out) {
  for (const int64_t length : flags.lengths) {
    eval::TextOptions options;
    options.tails = flags.tails;
    options.continuation = flags.continuation;
    RF_ASSIGN_OR_RETURN(options.variants, Variants(flags));
    options.nll = kinds.nll;
    options.distant = kinds.distant;
    options.novel = kinds.novel;
    options.seed = flags.seed;
    RF_ASSIGN_OR_RETURN(auto documents, Documents(tokenizer, flags, length));
    RF_ASSIGN_OR_RETURN(auto measure, eval::TextMeasure::Create(std::move(documents), options));
    out.push_back(std::make_unique<eval::TextMeasure>(std::move(measure)));
  }
  return absl::OkStatus();
}

absl::Status AddSplice(const tokenizer::Tokenizer& tokenizer, const EvalFlags& flags, Measures& out) {
  RF_ASSIGN_OR_RETURN(const auto variants, Variants(flags));
  for (const int64_t length : flags.lengths) {
    RF_ASSIGN_OR_RETURN(const auto documents, Documents(tokenizer, flags, length));
    for (const int64_t tail : flags.tails) {
      for (const eval::Variant& variant : variants) {
        RF_ASSIGN_OR_RETURN(auto measure, eval::SpliceMeasure::Create(
                                              documents, {tail, flags.continuation, variant, flags.seed}));
        out.push_back(std::make_unique<eval::SpliceMeasure>(std::move(measure)));
      }
    }
  }
  return absl::OkStatus();
}

// All files of the corpus, one after the other: what hides the needles.
absl::StatusOr<std::string> CorpusText(const std::string& folder) {
  std::string text;
  RF_ASSIGN_OR_RETURN(const auto files, fit::TextFiles(folder));
  for (const std::string& file : files) {
    RF_ASSIGN_OR_RETURN(const std::string bytes, base::ReadFile(file));
    absl::StrAppend(&text, bytes, "\n");
  }
  return text;
}

absl::Status AddNeedles(const tokenizer::Tokenizer& tokenizer, const EvalFlags& flags, Measures& out) {
  // Below it a tail of 512 would leave next to no bulk.
  constexpr int64_t kShort = 2048, kShortTail = 256;
  constexpr eval::Evidence kEvidence[] = {eval::Evidence::kBulk, eval::Evidence::kTail};
  RF_ASSIGN_OR_RETURN(const auto variants, Variants(flags));
  RF_ASSIGN_OR_RETURN(const std::string text, CorpusText(flags.corpus));
  for (const std::string& task : flags.tasks) {
    for (const std::string& evidence : flags.evidence) {
      for (const int64_t length : flags.lengths) {
        for (const int64_t tail : flags.tails) {
          eval::NeedleOptions options;
          RF_ASSIGN_OR_RETURN(options.task, Parse("--tasks", task, eval::kAllTasks));
          RF_ASSIGN_OR_RETURN(options.evidence, Parse("--evidence", evidence, kEvidence));
          options.length = length;
          options.tail = length < kShort ? std::min(tail, kShortTail) : tail;
          options.items = flags.items;
          options.seed = flags.seed;
          RF_ASSIGN_OR_RETURN(auto items, eval::MakeNeedles(tokenizer, text, options));
          out.push_back(std::make_unique<eval::NeedleMeasure>(std::move(items), options, variants));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<common::LoadedModel> Load(const EvalFlags& flags, const Environment& environment) {
  const auto config = flags.model.ToServeConfig();
  common::LoadModelOptions load;
  load.home = environment.home;
  load.source = config.router().source();
  load.backend = config.backend();
  load.for_decode = false;
  RF_ASSIGN_OR_RETURN(common::LoadedModel model, common::LoadModel(load));
  if (model.maps == nullptr) {
    return base::Error(
        absl::StatusCode::kFailedPrecondition, "NO_MAPS",
        "there is no map set to measure; fit one with `ridgefill fit`, or name it with --maps");
  }
  return model;
}

eval::Header MakeHeader(const common::LoadedModel& model) {
  eval::Header header;
  header.model = model.name;
  header.weights = model.hello.model.weights_digest;
  header.maps = model.maps->manifest().digest;
  header.backend = model.backend->capabilities().name;
  header.isa = model.backend->capabilities().isa;
  header.commit = Commit();
  header.split = model.maps->manifest().split;
  return header;
}

absl::Status RunMeasures(const common::LoadedModel& model, const Measures& measures, const std::string& out) {
  RF_ASSIGN_OR_RETURN(const auto records, eval::JsonLog::Open(out));
  RF_ASSIGN_OR_RETURN(const auto items, eval::JsonLog::Open(out.empty() ? "" : out + ".partial"));
  eval::Subject::Options options;
  for (const auto& measure : measures) {
    for (int64_t i = 0; i < measure->items(); ++i) {
      options.max_tokens = std::max(options.max_tokens, measure->tokens(i));
    }
  }
  RF_ASSIGN_OR_RETURN(const auto subject, eval::Subject::Create(*model.model, *model.maps, options));
  EvalProgress progress;
  EvalTable table;
  eval::RunOptions run;
  run.header = MakeHeader(model);
  run.items = items.get();
  run.records = records.get();
  run.progress = std::ref(progress);
  run.emit = [&](const eval::Record& record) {
    table.Add(record);
    if (out.empty()) std::printf("%s\n", record.dump().c_str());
    std::fflush(stdout);
    return absl::OkStatus();
  };
  for (const auto& measure : measures) RF_RETURN_IF_ERROR(eval::RunMeasure(*measure, *subject, run));
  return absl::OkStatus();
}

using AddMeasures = std::function<absl::Status(const tokenizer::Tokenizer&, const EvalFlags&, Measures&)>;

absl::Status Evaluate(const EvalFlags& flags, const AddMeasures& add, const Environment& environment) {
  RF_ASSIGN_OR_RETURN(const common::LoadedModel model, Load(flags, environment));
  Measures measures;
  RF_RETURN_IF_ERROR(add(*model.tokenizer, flags, measures));
  return RunMeasures(model, measures, flags.out);
}

void AddCommonFlags(CLI::App& command, EvalFlags& flags) {
  command
      .add_option(
          "--out", flags.out,
          "Append records to this file, and keep finished documents in FILE.partial: the same command "
          "goes on where it was stopped")
      ->type_name("FILE");
  command.add_option("--corpus", flags.corpus, "Folder of .txt files that no map was fitted on")
      ->capture_default_str()
      ->type_name("DIR");
  command.add_option("--mode", flags.mode, "SPEED")->capture_default_str()->type_name("MODE");
  command.add_option("--fills", flags.fills, "ridge, identity")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("FILL,...");
  command.add_option("--seed", flags.seed, "Of the choice of documents and items")
      ->capture_default_str()
      ->type_name("N");
  flags.model.AddTo(command);
}

void AddTextFlags(CLI::App& command, EvalFlags& flags) {
  command.add_option("--documents", flags.documents, "Documents, or all there are")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command.add_option("--length", flags.lengths, "Tokens of a document, continuation included")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("N,...");
  command.add_option("--tail", flags.tails, "Rows of the tail")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("T,...");
  command.add_option("--continuation", flags.continuation, "Tokens of a document that follow its prompt")
      ->capture_default_str()
      ->type_name("N");
}

void AddSpliceFlags(CLI::App& command, EvalFlags& flags) {
  flags.documents = 8;
  flags.fills = {"ridge"};
  AddTextFlags(command, flags);
}

void AddNeedleFlags(CLI::App& command, EvalFlags& flags) {
  flags.lengths = {1024, 2048, 4096, 8192};
  for (const eval::Task task : eval::kAllTasks) flags.tasks.push_back(std::string(eval::Name(task)));
  command.add_option("--tasks", flags.tasks, "What is hidden")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("TASK,...");
  command.add_option("--evidence", flags.evidence, "Where: bulk, or tail as a control")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("WHERE,...");
  command.add_option("--items", flags.items, "Items of each task, place and length")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command.add_option("--length", flags.lengths, "Tokens of an item, answer included")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("N,...");
  command.add_option("--tail", flags.tails, "Rows of the tail; at most 256 below 2,048 tokens")
      ->capture_default_str()
      ->delimiter(',')
      ->type_name("T,...");
}

struct Kind {
  const char* name;
  const char* description;
  AddMeasures add;
  void (*flags)(CLI::App& command, EvalFlags& flags);
};

AddMeasures Text(const TextKinds& kinds) {
  return [kinds](const tokenizer::Tokenizer& tokenizer, const EvalFlags& flags, Measures& out) {
    return AddText(tokenizer, flags, kinds, out);
  };
}

void AddOne(CLI::App& eval, Kind kind, Run& run) {
  CLI::App* const command = eval.add_subcommand(kind.name, kind.description);
  const auto flags = std::make_shared<EvalFlags>();
  kind.flags(*command, *flags);
  AddCommonFlags(*command, *flags);
  command->callback([flags, add = std::move(kind.add), &run] {
    run = [flags, add](const Environment& environment) { return Evaluate(*flags, add, environment); };
  });
}

}  // namespace

void AddEval(CLI::App& app, Run& run) {
  CLI::App* const eval = app.add_subcommand("eval", "Measure what a map set costs in quality");
  eval->require_subcommand(1);
  eval->footer(
      "Every figure is paired with the exact run of the same tokens and has a 95 % interval. Records go to "
      "standard\n"
      "output as JSON lines, or to --out; a table goes to standard error.\n\n"
      "Examples\n"
      "  ridgefill eval nll --model smollm2-135m-instruct --documents 60 --length 4096 --out quality.jsonl");
  AddOne(*eval,
         {"nll", "Paired loss on text, by window and distance from the bulk", Text({.nll = true}),
          &AddTextFlags},
         run);
  AddOne(*eval,
         {"distant", "Loss on tokens that need distant context", Text({.distant = true}), &AddTextFlags},
         run);
  AddOne(*eval, {"needle", "Retrieval of facts hidden in the bulk", &AddNeedles, &AddNeedleFlags}, run);
  AddOne(*eval,
         {"novel", "Perplexity ratio on tokens that are new in their document", Text({.novel = true}),
          &AddTextFlags},
         run);
  AddOne(*eval, {"splice", "Which late layers, and K or V, carry the loss", &AddSplice, &AddSpliceFlags},
         run);
}

}  // namespace ridgefill::cli
