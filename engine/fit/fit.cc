#include "engine/fit/fit.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/fit/accumulator.h"
#include "engine/fit/held_out_report.h"
#include "engine/fit/solver.h"
#include "engine/fit/sums.h"
#include "engine/ridge/device_maps.h"

namespace ridgefill::fit {
namespace {

// The sample behind the median norm: text of many documents, half a minute of nobody's time.
constexpr size_t kMedianDocuments = 8;
constexpr size_t kMedianRows = 1024;

absl::Status BadOption(absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kInvalidArgument, reason, message);
}

absl::Status CheckOptions(const model::ModelConfig& config, const std::vector<Document>& documents,
                          const FitOptions& o) {
  if (o.split < 1 || o.split > config.layers - 2) {
    return BadOption("FIT_SPLIT", absl::StrCat("split must be in [1, ", config.layers - 2,
                                               "] for a model of ", config.layers, " layers, got ", o.split));
  }
  if (o.dtype != "bf16" && o.dtype != "int8") {
    return BadOption("FIT_DTYPE", absl::StrCat("dtype must be bf16 or int8, got ", o.dtype));
  }
  if (o.out.empty()) return BadOption("FIT_OUT", "no output folder given");
  if (o.rows < 0 || (o.rows == 0 && o.merge.empty())) {
    return BadOption("FIT_ROWS", absl::StrCat("rows must be at least 1 without sums to merge, got ", o.rows));
  }
  if (o.tail_minimum < 1 || o.tail_default < o.tail_minimum || o.min_bulk < 0) {
    return BadOption(
        "FIT_TAIL",
        absl::StrCat("the tail (", o.tail_default, ") must be at least its minimum (", o.tail_minimum,
                     "), that at least 1, and the bulk (", o.min_bulk, ") at least 0"));
  }
  if (!std::isfinite(o.outlier_threshold) || o.outlier_threshold < 0) {
    return BadOption("FIT_OUTLIER_THRESHOLD",
                     absl::StrCat("the outlier threshold must be a norm, got ", o.outlier_threshold));
  }
  if (!(o.outlier_ratio > 1) || !std::isfinite(o.outlier_ratio)) {
    return BadOption("FIT_OUTLIER_RATIO",
                     absl::StrCat("the outlier ratio must be over 1, got ", o.outlier_ratio));
  }
  for (const Document& document : documents) {
    const int64_t tokens = static_cast<int64_t>(document.ids.size());
    if (tokens >= 2 && tokens <= config.context) continue;
    return BadOption("FIT_DOCUMENT_TOKENS", absl::StrCat("documents must have 2 to ", config.context,
                                                         " tokens (the model's context), one has ", tokens));
  }
  const int64_t have = static_cast<int64_t>(documents.size());
  if (o.held_out_documents < 1 || o.held_out_documents + (o.rows > 0 ? 1 : 0) > have) {
    return BadOption("FIT_CORPUS", absl::StrCat("the corpus has ", have, " documents; ", o.held_out_documents,
                                                " held-out ones and one to fit are needed"));
  }
  return absl::OkStatus();
}

class Fitter {
 public:
  Fitter(const model::Model& model, const std::vector<Document>& documents, const FitOptions& options)
      : model_(model), documents_(documents), options_(options) {}

  absl::StatusOr<FitResult> Run(const base::ModelIdentity& identity) {
    RF_RETURN_IF_ERROR(MakeFolder());
    RF_RETURN_IF_ERROR(Start(identity));
    RF_RETURN_IF_ERROR(AccumulateDocuments());
    RF_RETURN_IF_ERROR(Merge());
    RF_RETURN_IF_ERROR(SolveAndStore());
    RF_RETURN_IF_ERROR(Report());
    return std::move(result_);
  }

 private:
  absl::Status MakeFolder() {
    std::error_code error;
    std::filesystem::create_directories(options_.out, error);
    if (!error) return absl::OkStatus();
    return base::Error(absl::StatusCode::kUnavailable, "FILE_ERROR",
                       absl::StrCat("cannot create ", options_.out, ": ", error.message()));
  }

  std::string sums_path() const {
    return options_.sums_path.empty() ? options_.out + "/sums.safetensors" : options_.sums_path;
  }

  // Documents in the order of their turn: held-out ones first, so that more rows later only add to the end.
  int64_t WantedDocuments() const {
    int64_t wanted = options_.held_out_documents, rows = 0;
    while (rows < options_.rows && wanted < static_cast<int64_t>(documents_.size())) {
      rows += static_cast<int64_t>(documents_[wanted++].ids.size());
    }
    return wanted;
  }

  int64_t LongestDocument() const {
    size_t longest = 1;
    for (const Document& document : documents_) longest = std::max(longest, document.ids.size());
    return static_cast<int64_t>(longest);
  }

  absl::Status Progress(FitStage stage, int64_t done, int64_t total, int64_t new_tokens) {
    tokens_ += new_tokens;
    return options_.progress ? options_.progress({stage, done, total, tokens_}) : absl::OkStatus();
  }

  // Empty sums, or those of the run that was interrupted here.
  absl::Status Start(const base::ModelIdentity& identity) {
    const model::ModelConfig& config = model_.config();
    SumsKey key;
    key.model = identity;
    key.layers = config.layers;
    key.hidden = config.hidden;
    key.kv_width = config.kv_width();
    key.split = options_.split;
    key.outlier_ratio = options_.outlier_ratio;
    const std::string digest = DocumentsDigest(documents_);
    if (std::filesystem::exists(sums_path())) return Resume(key, digest);
    RF_ASSIGN_OR_RETURN(key.outlier_threshold, Threshold(key));
    sums_.key = key;
    sums_.corpus = options_.corpus;
    sums_.documents_digest = digest;
    sums_.held_out_documents = options_.held_out_documents;
    sums_.fit = Sums(key);
    sums_.held_out = Sums(key);
    return absl::OkStatus();
  }

  absl::Status Resume(SumsKey key, const std::string& digest) {
    RF_ASSIGN_OR_RETURN(sums_, LoadSums(sums_path()));
    // The threshold was estimated by the run that began.
    key.outlier_threshold =
        options_.outlier_threshold > 0 ? options_.outlier_threshold : sums_.key.outlier_threshold;
    const std::string hint = absl::StrCat("cannot go on with ", sums_path(), " (remove it to start anew)");
    if (absl::Status status = CheckSameKey(key, sums_.key); !status.ok())
      return base::WithContext(status, hint);
    if (sums_.documents_digest != digest || sums_.held_out_documents != options_.held_out_documents) {
      return base::Error(absl::StatusCode::kFailedPrecondition, "SUMS_OTHER_DOCUMENTS",
                         absl::StrCat(hint, ": it was begun over other documents"));
    }
    result_.resumed_documents = sums_.documents_done;
    return absl::OkStatus();
  }

  absl::StatusOr<float> Threshold(const SumsKey& key) {
    if (options_.outlier_threshold > 0) return options_.outlier_threshold;
    if (!options_.merge.empty()) {
      RF_ASSIGN_OR_RETURN(const SumsFile other, LoadSums(options_.merge.front()));
      return other.key.outlier_threshold;
    }
    RF_ASSIGN_OR_RETURN(const auto walker,
                        RowWalker::Create(model_, key.split, 0, kMedianRows, options_.chunk_rows));
    std::vector<float> norms;
    const size_t count = std::min(kMedianDocuments, documents_.size());
    for (size_t i = 0; i < count; ++i) {
      const auto sample = absl::MakeConstSpan(documents_[i].ids).subspan(0, kMedianRows);
      RF_ASSIGN_OR_RETURN(const std::vector<float> more, walker->Norms(sample));
      norms.insert(norms.end(), more.begin() + 1, more.end());  // row 0 is an outlier by rule
      RF_RETURN_IF_ERROR(Progress(FitStage::kOutliers, static_cast<int64_t>(i + 1),
                                  static_cast<int64_t>(count), static_cast<int64_t>(sample.size())));
    }
    const auto middle = norms.begin() + static_cast<int64_t>(norms.size() / 2);
    std::nth_element(norms.begin(), middle, norms.end());
    return options_.outlier_ratio * *middle;
  }

  absl::Status AccumulateDocuments() {
    const int64_t wanted = WantedDocuments();
    if (sums_.documents_done >= wanted) return absl::OkStatus();
    RF_ASSIGN_OR_RETURN(const auto accumulator,
                        SumsAccumulator::Create(model_, sums_.key, LongestDocument(), options_.chunk_rows));
    while (sums_.documents_done < wanted) {
      const std::vector<int32_t>& ids = documents_[sums_.documents_done].ids;
      const bool held_out = sums_.documents_done < sums_.held_out_documents;
      RF_RETURN_IF_ERROR(accumulator->Add(ids, held_out ? sums_.held_out : sums_.fit));
      ++sums_.documents_done;
      const bool last = sums_.documents_done == wanted;
      if (last || sums_.documents_done % options_.save_every == 0)
        RF_RETURN_IF_ERROR(SaveSums(sums_path(), sums_));
      RF_RETURN_IF_ERROR(
          Progress(FitStage::kSums, sums_.documents_done, wanted, static_cast<int64_t>(ids.size())));
    }
    return absl::OkStatus();
  }

  absl::Status Merge() {
    std::set<std::string> counted = {sums_.documents_digest};
    for (const std::string& path : options_.merge) {
      RF_ASSIGN_OR_RETURN(const SumsFile other, LoadSums(path));
      if (absl::Status status = CheckSameKey(sums_.key, other.key); !status.ok()) {
        return base::WithContext(status, absl::StrCat("cannot merge ", path));
      }
      if (!counted.insert(other.documents_digest).second) {
        return base::Error(
            absl::StatusCode::kFailedPrecondition, "SUMS_SAME_DOCUMENTS",
            absl::StrCat("cannot merge ", path,
                         ": its documents are those of this run or of another merged file, and "
                         "would be counted twice"));
      }
      RF_RETURN_IF_ERROR(Add(other.fit, sums_.fit));
      RF_RETURN_IF_ERROR(Add(other.held_out, sums_.held_out));
      absl::StrAppend(&sums_.corpus, sums_.corpus.empty() ? "" : " + ", other.corpus);
    }
    return absl::OkStatus();
  }

  absl::Status SolveAndStore() {
    const int64_t needed = kRowsPerDimension * sums_.key.hidden;
    if (sums_.fit.rows < needed) {
      result_.warnings.push_back(absl::StrCat("fitted on ", sums_.fit.rows, " rows; at least ", needed, " (",
                                              kRowsPerDimension, " per input dimension) are advised"));
    }
    RF_RETURN_IF_ERROR(Progress(FitStage::kSolve, 0, 1, 0));
    SolveOptions options;
    options.threads = model_.backend().capabilities().threads;
    RF_ASSIGN_OR_RETURN(solved_, Solve(sums_.key, sums_.fit, sums_.held_out, options));
    FillManifest();
    RF_RETURN_IF_ERROR(Store());
    return Progress(FitStage::kSolve, 1, 1, 0);
  }

  void FillManifest() {
    ridge::MapSetManifest& m = result_.manifest;
    m.model = sums_.key.model;
    m.layers = sums_.key.layers;
    m.hidden = sums_.key.hidden;
    m.kv_width = sums_.key.kv_width;
    m.split = sums_.key.split;
    m.dtype = options_.dtype;
    m.tail_default = options_.tail_default;
    m.tail_minimum = options_.tail_minimum;
    m.min_bulk = options_.min_bulk;
    m.outlier_ratio = sums_.key.outlier_ratio;
    m.outlier_threshold = sums_.key.outlier_threshold;
    m.fit_rows = sums_.fit.rows;
    m.fit_corpus = sums_.corpus;
  }

  absl::Status Store() {
    std::vector<ridge::LayerMap> maps;
    for (const SolvedLayer& layer : solved_) maps.push_back(layer.map);
    return ridge::SaveMapSet(options_.out, result_.manifest, maps);
  }

  // From the stored file: what bf16 or int8 lost is in the figures.
  absl::Status Report() {
    RF_ASSIGN_OR_RETURN(const auto stored, ridge::MapSet::Load(options_.out));
    RF_ASSIGN_OR_RETURN(const auto maps, ridge::DeviceMaps::Load(*stored, model_.backend()));
    const int64_t total = sums_.held_out_documents;
    ReportOptions options;
    options.chunk_rows = options_.chunk_rows;
    options.progress = [&](int64_t done) {
      return Progress(FitStage::kReport, done, total, static_cast<int64_t>(documents_[done - 1].ids.size()));
    };
    const auto held_out = absl::MakeConstSpan(documents_).subspan(0, total);
    RF_ASSIGN_OR_RETURN(result_.manifest.report, HeldOutReport(model_, *maps, held_out, options));
    for (size_t i = 0; i < solved_.size(); ++i) {
      RF_CHECK(result_.manifest.report[i].layer == solved_[i].map.layer);
      result_.manifest.report[i].k_penalty = solved_[i].k_penalty;
      result_.manifest.report[i].v_penalty = solved_[i].v_penalty;
    }
    RF_RETURN_IF_ERROR(Store());
    RF_ASSIGN_OR_RETURN(const auto reread, ridge::MapSet::Load(options_.out));
    result_.manifest = reread->manifest();
    return absl::OkStatus();
  }

  const model::Model& model_;
  const std::vector<Document>& documents_;
  const FitOptions& options_;
  SumsFile sums_;
  std::vector<SolvedLayer> solved_;
  FitResult result_;
  int64_t tokens_ = 0;
};

}  // namespace

absl::string_view Name(FitStage stage) {
  switch (stage) {
    case FitStage::kOutliers:
      return "outliers";
    case FitStage::kSums:
      return "sums";
    case FitStage::kSolve:
      return "solve";
    case FitStage::kReport:
      return "report";
  }
  RF_CHECK(false);
}

absl::StatusOr<FitResult> FitMaps(const model::Model& model, const base::ModelIdentity& identity,
                                  const std::vector<Document>& documents, const FitOptions& options) {
  RF_RETURN_IF_ERROR(CheckOptions(model.config(), documents, options));
  return Fitter(model, documents, options).Run(identity);
}

}  // namespace ridgefill::fit
