#include "engine/eval/nll.h"

#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/eval/filled_forward.h"
#include "engine/formats/json.h"
#include "engine/ridge/fill_plan.h"
#include "engine/runtime/fill_pass.h"

namespace ridgefill::eval {
namespace {

constexpr int64_t kLastRows = 512;

absl::Status CheckDocuments(absl::Span<const std::vector<int32_t>> documents, const NllOptions& o) {
  const auto refuse = [](absl::string_view reason, absl::string_view message) {
    return base::Error(absl::StatusCode::kInvalidArgument, reason, message);
  };
  if (documents.empty()) return refuse("EVAL_NO_DOCUMENTS", "no documents to evaluate");
  const int64_t tokens = static_cast<int64_t>(documents.front().size());
  for (const std::vector<int32_t>& document : documents) {
    if (static_cast<int64_t>(document.size()) != tokens) {
      return refuse("EVAL_LENGTHS", absl::StrCat("documents of ", tokens, " and ", document.size(),
                                                 " tokens in one evaluation"));
    }
  }
  if (o.tail < 2 || o.continuation < 1 || o.tail + o.continuation >= tokens) {
    return refuse("EVAL_WINDOWS",
                  absl::StrCat("tail (", o.tail, ", at least 2) and continuation (", o.continuation,
                               ", at least 1) must leave bulk in documents of ", tokens, " tokens"));
  }
  return absl::OkStatus();
}

// NLL by position of one document's scored rows, [tail_begin, tokens - 1).
using Nlls = std::vector<double>;

class Evaluation {
 public:
  static absl::StatusOr<std::unique_ptr<Evaluation>> Create(const model::Model& model,
                                                            const ridge::DeviceMaps& maps, int64_t tokens,
                                                            const NllOptions& options) {
    auto out = std::make_unique<Evaluation>(maps.manifest(), tokens, options);
    const int split = maps.manifest().split;
    RF_ASSIGN_OR_RETURN(out->forward_, FilledForward::Create(model, split, tokens, options.chunk_rows));
    for (Fill fill : options.fills) {
      auto pass = fill == Fill::kRidge ? runtime::FillPass::Create(model, maps, options.chunk_rows)
                                       : runtime::FillPass::CreateIdentity(model, split, options.chunk_rows);
      RF_ASSIGN_OR_RETURN(auto made, std::move(pass));
      out->fills_.push_back(std::move(made));
    }
    return out;
  }

  Evaluation(const ridge::MapSetManifest& manifest, int64_t tokens, const NllOptions& options)
      : manifest_(manifest), tokens_(tokens), options_(options), filled_(options.fills.size()) {}

  absl::Status Add(const std::vector<int32_t>& document) {
    RF_RETURN_IF_ERROR(forward_->Lower(document));
    RF_ASSIGN_OR_RETURN(Nlls exact, Score(ridge::MakeFillPlan({}, tokens_, {}, {}), nullptr));
    exact_.push_back(std::move(exact));
    const ridge::FillPlan plan = Plan();
    filled_rows_ += plan.filled_count();
    for (size_t i = 0; i < fills_.size(); ++i) {
      RF_ASSIGN_OR_RETURN(Nlls filled, Score(plan, fills_[i].get()));
      filled_[i].push_back(std::move(filled));
    }
    return absl::OkStatus();
  }

  NllReport Result(const model::Model& model, const base::ModelIdentity& identity) const {
    NllReport report;
    report.model = identity.name;
    report.isa = model.backend().capabilities().isa;
    report.split = manifest_.split;
    report.tail = options_.tail;
    report.prompt_tokens = tokens_ - options_.continuation;
    report.continuation = options_.continuation;
    report.documents = static_cast<int64_t>(exact_.size());
    report.filled_share =
        static_cast<double>(filled_rows_) / static_cast<double>(report.documents * report.prompt_tokens);
    for (size_t i = 0; i < fills_.size(); ++i) {
      NllRun run;
      run.fill = options_.fills[i];
      // Offsets from tail_begin. The last prompt row already predicts the continuation.
      run.windows.push_back(Window("tail", 0, options_.tail - 1, filled_[i]));
      if (options_.tail > kLastRows) {
        run.windows.push_back(Window("last_512", options_.tail - kLastRows, options_.tail - 1, filled_[i]));
      }
      run.windows.push_back(
          Window("continuation", options_.tail - 1, options_.tail - 1 + options_.continuation, filled_[i]));
      report.runs.push_back(std::move(run));
    }
    return report;
  }

 private:
  // Forced tokens are exact rows, as generated ones are.
  ridge::FillPlan Plan() const {
    ridge::FillDecision decision;
    decision.mode = ridge::Mode::kSpeed;
    decision.split = manifest_.split;
    decision.tail = static_cast<int>(options_.tail + options_.continuation);
    std::vector<int32_t> outliers;
    for (int64_t row = 0; row < tokens_; ++row) {
      if (ridge::IsOutlier(row, forward_->norms()[row], manifest_.outlier_threshold)) {
        outliers.push_back(static_cast<int32_t>(row));
      }
    }
    return ridge::MakeFillPlan(decision, tokens_, outliers, {});
  }

  absl::StatusOr<Nlls> Score(const ridge::FillPlan& plan, runtime::FillPass* fill) {
    RF_RETURN_IF_ERROR(forward_->Late(plan, fill));
    return forward_->NextTokenNll(tokens_ - options_.continuation - options_.tail, tokens_ - 1);
  }

  NllWindow Window(const char* name, int64_t begin, int64_t end, const std::vector<Nlls>& filled) const {
    const auto mean = [&](const Nlls& nlls) {
      return std::accumulate(nlls.begin() + begin, nlls.begin() + end, 0.0) /
             static_cast<double>(end - begin);
    };
    NllWindow window;
    window.name = name;
    window.tokens = end - begin;
    for (size_t document = 0; document < exact_.size(); ++document) {
      const double exact = mean(exact_[document]);
      window.exact += exact / static_cast<double>(exact_.size());
      window.deltas.push_back(mean(filled[document]) - exact);
    }
    window.delta = Bootstrap(window.deltas);
    return window;
  }

  const ridge::MapSetManifest& manifest_;
  const int64_t tokens_;
  const NllOptions& options_;
  std::unique_ptr<FilledForward> forward_;
  std::vector<std::unique_ptr<runtime::FillPass>> fills_;  // as options.fills
  std::vector<Nlls> exact_;                                // by document
  std::vector<std::vector<Nlls>> filled_;                  // by fill, by document
  int64_t filled_rows_ = 0;
};

}  // namespace

absl::string_view Name(Fill fill) {
  switch (fill) {
    case Fill::kRidge:
      return "ridge";
    case Fill::kIdentity:
      return "identity";
  }
  RF_CHECK(false);
}

absl::StatusOr<NllReport> EvalNll(const model::Model& model, const base::ModelIdentity& identity,
                                  const ridge::DeviceMaps& maps,
                                  absl::Span<const std::vector<int32_t>> documents,
                                  const NllOptions& options) {
  RF_RETURN_IF_ERROR(CheckDocuments(documents, options));
  const int64_t tokens = static_cast<int64_t>(documents.front().size());
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Evaluation> evaluation,
                      Evaluation::Create(model, maps, tokens, options));
  for (size_t i = 0; i < documents.size(); ++i) {
    RF_RETURN_IF_ERROR(evaluation->Add(documents[i]));
    if (options.progress) RF_RETURN_IF_ERROR(options.progress(static_cast<int64_t>(i + 1)));
  }
  return evaluation->Result(model, identity);
}

std::string ToJsonLines(const NllReport& report) {
  std::string out;
  for (const NllRun& run : report.runs) {
    for (const NllWindow& window : run.windows) {
      const formats::Json line = {{"eval", "nll"},
                                  {"model", report.model},
                                  {"isa", report.isa},
                                  {"split", report.split},
                                  {"tail", report.tail},
                                  {"mode", "SPEED"},
                                  {"fill", std::string(Name(run.fill))},
                                  {"prompt_tokens", report.prompt_tokens},
                                  {"filled_share", report.filled_share},
                                  {"documents", report.documents},
                                  {"window", window.name},
                                  {"window_tokens", window.tokens},
                                  {"exact_nll", window.exact},
                                  {"delta_nll", window.delta.mean},
                                  {"delta_nll_95", {window.delta.low, window.delta.high}}};
      absl::StrAppend(&out, line.dump(-1, ' ', false, formats::Json::error_handler_t::replace), "\n");
    }
  }
  return out;
}

}  // namespace ridgefill::eval
