#include "engine/fit/fit.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/fit/collector.h"
#include "engine/fit/held_out_report.h"
#include "engine/fit/row_file.h"
#include "engine/fit/samples.h"
#include "engine/fit/solver.h"
#include "engine/ridge/device_maps.h"

namespace ridgefill::fit {
namespace {

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
  if (o.mixture < 1 || o.mixture > 1024) {
    return BadOption("FIT_MIXTURE", absl::StrCat("a mixture has 1 to 1024 maps, got ", o.mixture));
  }
  if (o.mass_distance < 1) {
    return BadOption("FIT_MASS_DISTANCE",
                     absl::StrCat("mass_distance must be at least 1, got ", o.mass_distance));
  }
  if (o.out.empty()) return BadOption("FIT_OUT", "no output folder given");
  if (o.rows < 0 || (o.rows == 0 && o.merge.empty())) {
    return BadOption("FIT_ROWS", absl::StrCat("rows must be at least 1 without rows to merge, got ", o.rows));
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
    SetKey(identity);
    RF_RETURN_IF_ERROR(MakeFolders());
    RF_RETURN_IF_ERROR(CollectRows());
    RF_RETURN_IF_ERROR(Merge());
    RF_RETURN_IF_ERROR(SolveLayers());
    RF_RETURN_IF_ERROR(Store());
    RF_RETURN_IF_ERROR(Report());
    if (options_.rows_folder.empty()) RemoveRows();
    return std::move(result_);
  }

 private:
  void SetKey(const base::ModelIdentity& identity) {
    const model::ModelConfig& config = model_.config();
    key_.model = identity;
    key_.layers = config.layers;
    key_.hidden = config.hidden;
    key_.kv_width = config.kv_width();
    key_.heads_kv = config.heads_kv;
    key_.splits = {options_.split};
    key_.mass_distance = options_.mass_distance;
  }

  std::string rows_folder() const {
    return options_.rows_folder.empty() ? options_.out + "/rows" : options_.rows_folder;
  }

  absl::Status MakeFolders() {
    for (const std::string& folder : {options_.out, rows_folder()}) {
      std::error_code error;
      std::filesystem::create_directories(folder, error);
      if (!error) continue;
      return base::Error(absl::StatusCode::kUnavailable, "FILE_ERROR",
                         absl::StrCat("cannot create ", folder, ": ", error.message()));
    }
    return absl::OkStatus();
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

  absl::Status CollectRows() {
    const int64_t wanted = WantedDocuments();
    std::unique_ptr<Collector> collector;  // made when there is something to do
    for (int64_t i = 0; i < wanted; ++i) {
      const std::string path =
          absl::StrCat(rows_folder(), "/", absl::Dec(i, absl::kZeroPad5), ".safetensors");
      int64_t tokens = 0;
      if (std::filesystem::exists(path)) {
        ++result_.resumed_documents;
      } else {
        if (collector == nullptr) {
          RF_ASSIGN_OR_RETURN(collector,
                              Collector::Create(model_, key_, LongestDocument(), options_.chunk_rows));
        }
        RF_RETURN_IF_ERROR(Collect(*collector, i, path));
        tokens = static_cast<int64_t>(documents_[i].ids.size());
      }
      RF_RETURN_IF_ERROR(Take(path, i));
      RF_RETURN_IF_ERROR(Progress(FitStage::kRows, i + 1, wanted, tokens));
    }
    return absl::OkStatus();
  }

  absl::Status Collect(Collector& collector, int64_t i, const std::string& path) {
    RF_ASSIGN_OR_RETURN(DocumentRows rows, collector.Collect(documents_[i].ids));
    rows.corpus = options_.corpus;
    rows.digest = TokensDigest(documents_[i].ids);
    rows.held_out = i < options_.held_out_documents;
    return SaveRows(path, key_, rows);
  }

  // A file of this run's document i, perhaps of an earlier start.
  absl::Status Take(const std::string& path, int64_t i) {
    const std::string hint = absl::StrCat("cannot go on with ", path, " (remove its folder to start anew)");
    auto opened = RowFile::Open(path);
    if (!opened.ok()) return base::WithContext(opened.status(), hint);
    const RowFile& file = **opened;
    if (absl::Status status = CheckSameKey(key_, file.key()); !status.ok()) {
      return base::WithContext(status, hint);
    }
    if (file.digest() != TokensDigest(documents_[i].ids) ||
        file.held_out() != (i < options_.held_out_documents)) {
      return base::Error(absl::StatusCode::kFailedPrecondition, "ROWS_OTHER_DOCUMENTS",
                         absl::StrCat(hint, ": it was begun over other documents"));
    }
    return Add(*std::move(opened));
  }

  absl::Status Add(std::unique_ptr<RowFile> file) {
    if (!counted_.insert(file->digest()).second) {
      return base::Error(
          absl::StatusCode::kFailedPrecondition, "ROWS_SAME_DOCUMENTS",
          absl::StrCat(file->path(),
                       ": its document is one of this run or of another merged folder, and would "
                       "be counted twice"));
    }
    if (corpora_.insert(file->corpus()).second) {
      absl::StrAppend(&corpus_, corpus_.empty() ? "" : " + ", file->corpus());
    }
    (file->held_out() ? held_out_ : fit_).push_back(file.get());
    files_.push_back(std::move(file));
    return absl::OkStatus();
  }

  absl::Status Merge() {
    for (const std::string& folder : options_.merge) {
      std::vector<std::string> paths;
      std::error_code error;
      for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
        if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
      }
      if (paths.empty()) {
        return base::Error(absl::StatusCode::kNotFound, "ROWS_EMPTY",
                           absl::StrCat("cannot merge ", folder, ": no file of rows in it"));
      }
      std::sort(paths.begin(), paths.end());
      for (const std::string& path : paths) {
        auto file = RowFile::Open(path);
        absl::Status status = file.ok() ? CheckSameKey(key_, (*file)->key()) : file.status();
        if (status.ok()) status = Add(*std::move(file));
        if (!status.ok()) return base::WithContext(status, absl::StrCat("cannot merge ", path));
      }
    }
    return absl::OkStatus();
  }

  absl::Status SolveLayers() {
    const std::vector<const RowFile*> all = AllFiles();
    threshold_ = options_.outlier_threshold > 0
                     ? options_.outlier_threshold
                     : OutlierThreshold(all, options_.split, options_.outlier_ratio);
    Samples fit = MakeSamples(fit_, options_.split, threshold_, options_.previous_row);
    Samples held_out = MakeSamples(held_out_, options_.split, threshold_, options_.previous_row);
    fit_rows_ = static_cast<int64_t>(fit.rows.size());
    WarnOfFewRows(fit.inputs);
    if (options_.mixture > 1) {
      if (fit_rows_ < options_.mixture) {
        return BadOption("FIT_MIXTURE",
                         absl::StrCat("a mixture of ", options_.mixture, " maps from ", fit_rows_, " rows"));
      }
      gate_ = FindClusters(fit, key_.hidden, options_.mixture, options_.seed);
      SortByMap(gate_, fit);
      SortByMap(gate_, held_out);
    }
    RF_ASSIGN_OR_RETURN(const auto solver, Solver::Create(model_.backend(), fit, held_out, {}));
    for (int layer = options_.split + 1; layer < key_.layers; ++layer) {
      RF_RETURN_IF_ERROR(SolveLayer(*solver, fit, held_out, layer));
      RF_RETURN_IF_ERROR(
          Progress(FitStage::kSolve, layer - options_.split, key_.layers - options_.split - 1, 0));
    }
    return absl::OkStatus();
  }

  // Heads with weights of their own are problems of their own: summed one after the other, solved each on a
  // thread of its own.
  absl::Status SolveLayer(Solver& solver, const Samples& fit, const Samples& held_out, int layer) {
    std::vector<Heads> parts = {{0, key_.heads_kv}};
    if (options_.weights == RowWeights::kHead) {
      parts.clear();
      for (int head = 0; head < key_.heads_kv; ++head) parts.push_back({head, head + 1});
    }
    std::vector<std::unique_ptr<LayerSums>> sums;
    for (const Heads& heads : parts) {
      RF_ASSIGN_OR_RETURN(auto some, solver.Sum(Layer(fit, layer, heads), Layer(held_out, layer, heads)));
      sums.push_back(std::move(some));
    }
    std::vector<absl::StatusOr<SolvedLayer>> solved(parts.size(), absl::InternalError("not solved"));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < parts.size(); ++i) {
      threads.emplace_back([&, i] { solved[i] = solver.Solve(*sums[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    SolvedLayer whole = EmptyLayer(layer);
    for (size_t i = 0; i < parts.size(); ++i) {
      RF_RETURN_IF_ERROR(solved[i].status());
      Place(*solved[i], parts[i], whole);
    }
    solved_.push_back(std::move(whole));
    return absl::OkStatus();
  }

  SolvedLayer EmptyLayer(int layer) const {
    SolvedLayer whole;
    const int64_t outputs = int64_t{options_.mixture} * 2 * key_.kv_width;
    whole.map.layer = layer;
    whole.map.weight.resize(outputs * key_.hidden * (options_.previous_row ? 2 : 1));
    whole.map.bias.resize(outputs);
    return whole;
  }

  // Some heads' K and V go to their rows of every map of the mixture; figures are means over heads.
  void Place(const SolvedLayer& part, const Heads& heads, SolvedLayer& whole) const {
    const int64_t dim = key_.kv_width / key_.heads_kv, count = (heads.end - heads.begin) * dim;
    const int64_t inputs = static_cast<int64_t>(whole.map.weight.size() / whole.map.bias.size());
    int64_t from = 0;
    for (int64_t half = 0; half < 2 * options_.mixture; ++half) {  // K, V, K, V, ...
      for (int64_t i = 0; i < count; ++i, ++from) {
        const int64_t to = half * key_.kv_width + heads.begin * dim + i;
        std::copy_n(part.map.weight.begin() + from * inputs, inputs, whole.map.weight.begin() + to * inputs);
        whole.map.bias[to] = part.map.bias[from];
      }
    }
    const double share = static_cast<double>(heads.end - heads.begin) / key_.heads_kv;
    for (auto half : {&SolvedLayer::k, &SolvedLayer::v}) {
      (whole.*half).penalty += share * (part.*half).penalty;
      (whole.*half).shrinkage += share * (part.*half).shrinkage;
      (whole.*half).residual += share * (part.*half).residual;
    }
  }

  std::vector<const RowFile*> AllFiles() const {
    std::vector<const RowFile*> all;
    for (const auto& file : files_) all.push_back(file.get());
    return all;
  }

  void WarnOfFewRows(int64_t inputs) {
    const int64_t needed = kRowsPerDimension * inputs;
    if (fit_rows_ >= needed) return;
    result_.warnings.push_back(absl::StrCat("fitted on ", fit_rows_, " rows; at least ", needed, " (",
                                            kRowsPerDimension, " per input dimension) are advised"));
  }

  LayerSamples Layer(const Samples& samples, int layer, const Heads& heads) const {
    LayerSamples out;
    out.y = Targets(samples, layer, heads);
    if (options_.weights != RowWeights::kNone) out.weights = Weights(samples, layer, heads);
    return out;
  }

  absl::Status Store() {
    ridge::MapSetManifest& m = result_.manifest;
    m.model = key_.model;
    m.layers = key_.layers;
    m.hidden = key_.hidden;
    m.kv_width = key_.kv_width;
    m.split = options_.split;
    m.dtype = options_.dtype;
    m.mixture = options_.mixture;
    m.previous_row = options_.previous_row;
    m.tail_default = options_.tail_default;
    m.tail_minimum = options_.tail_minimum;
    m.min_bulk = options_.min_bulk;
    m.outlier_ratio = options_.outlier_ratio;
    m.outlier_threshold = threshold_;
    m.fit_rows = fit_rows_;
    m.fit_corpus = corpus_;
    m.fit_weights = std::string(Name(options_.weights));
    std::vector<ridge::LayerMap> maps;
    for (const SolvedLayer& layer : solved_) maps.push_back(layer.map);
    return ridge::SaveMapSet(options_.out, m, maps, gate_);
  }

  // From the stored file: what bf16 or int8 lost is in the figures.
  absl::Status Report() {
    RF_ASSIGN_OR_RETURN(const auto stored, ridge::MapSet::Load(options_.out));
    RF_ASSIGN_OR_RETURN(const auto maps, ridge::DeviceMaps::Load(*stored, model_.backend()));
    const int64_t total = static_cast<int64_t>(held_out_.size());
    ReportOptions options;
    options.chunk_rows = options_.chunk_rows;
    options.progress = [&](int64_t done) { return Progress(FitStage::kReport, done, total, 0); };
    RF_ASSIGN_OR_RETURN(result_.manifest.report, HeldOutReport(model_, *maps, held_out_, options));
    for (size_t i = 0; i < solved_.size(); ++i) {
      ridge::LayerReport& report = result_.manifest.report[i];
      RF_CHECK(report.layer == solved_[i].map.layer);
      report.k_penalty = solved_[i].k.penalty;
      report.v_penalty = solved_[i].v.penalty;
      report.k_shrinkage = solved_[i].k.shrinkage;
      report.v_shrinkage = solved_[i].v.shrinkage;
      report.k_residual = solved_[i].k.residual;
      report.v_residual = solved_[i].v.residual;
    }
    RF_RETURN_IF_ERROR(Store());
    RF_ASSIGN_OR_RETURN(const auto reread, ridge::MapSet::Load(options_.out));
    result_.manifest = reread->manifest();
    return absl::OkStatus();
  }

  void RemoveRows() {
    files_.clear();
    std::error_code ignored;
    std::filesystem::remove_all(rows_folder(), ignored);
  }

  const model::Model& model_;
  const std::vector<Document>& documents_;
  const FitOptions& options_;
  RowsKey key_;
  std::vector<std::unique_ptr<RowFile>> files_;
  std::vector<const RowFile*> fit_, held_out_;
  std::set<std::string> counted_, corpora_;
  std::string corpus_;
  float threshold_ = 0;
  int64_t fit_rows_ = 0;
  ridge::Gate gate_;
  std::vector<SolvedLayer> solved_;
  FitResult result_;
  int64_t tokens_ = 0;
};

}  // namespace

absl::string_view Name(RowWeights weights) {
  switch (weights) {
    case RowWeights::kNone:
      return "none";
    case RowWeights::kLayer:
      return "layer";
    case RowWeights::kHead:
      return "head";
  }
  RF_CHECK(false);
}

absl::string_view Name(FitStage stage) {
  switch (stage) {
    case FitStage::kRows:
      return "rows";
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
