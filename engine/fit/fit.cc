#include "engine/fit/fit.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/check.h"
#include "engine/base/status.h"
#include "engine/fit/collector.h"
#include "engine/fit/row_file.h"
#include "engine/fit/split_fitter.h"

namespace ridgefill::fit {
namespace {

absl::Status BadOption(absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kInvalidArgument, reason, message);
}

absl::Status CheckMeasured(const FitOptions& o, const std::string& file_digest) {
  const auto measured = o.measured_text.find(file_digest);
  if (measured == o.measured_text.end()) return absl::OkStatus();
  return BadOption("FIT_HELDOUT", absl::StrCat(measured->second,
                                               " is text to measure the maps on, and they "
                                               "would be fitted on it: no file may be in both"));
}

absl::Status CheckOptions(const model::ModelConfig& config, const std::vector<Document>& documents,
                          const FitOptions& o) {
  if (o.splits.empty()) return BadOption("FIT_SPLIT", "no split given");
  for (size_t i = 0; i < o.splits.size(); ++i) {
    const int split = o.splits[i];
    if (split < 1 || split > config.layers - 2) {
      return BadOption("FIT_SPLIT", absl::StrCat("a split must be in [1, ", config.layers - 2,
                                                 "] for a model of ", config.layers, " layers, got ", split));
    }
    if (i > 0 && split <= o.splits[i - 1]) {
      return BadOption("FIT_SPLIT", absl::StrCat("splits must ascend, got ", absl::StrJoin(o.splits, ",")));
    }
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
    RF_RETURN_IF_ERROR(CheckMeasured(o, document.file_digest));
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
    // All that can be refused before the model's pass, which is dear.
    RF_RETURN_IF_ERROR(CountOwn());
    RF_RETURN_IF_ERROR(OpenMerged());
    RF_RETURN_IF_ERROR(MakeFolders());
    RF_RETURN_IF_ERROR(CollectRows());
    for (std::unique_ptr<RowFile>& file : merged_) Keep(std::move(file));
    RF_RETURN_IF_ERROR(FitSplits());
    files_.clear();
    if (options_.rows_folder.empty()) RemoveRows(result_);
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
    key_.splits = options_.splits;
    key_.mass_distance = options_.mass_distance;
  }

  std::string rows_folder() const {
    return options_.rows_folder.empty() ? options_.out + "/rows" : options_.rows_folder;
  }

  absl::Status MakeFolders() {
    result_.rows_folder = rows_folder();
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

  std::string PathOf(int64_t document) const {
    return absl::StrCat(rows_folder(), "/", absl::Dec(document, absl::kZeroPad5), ".safetensors");
  }

  absl::Status CountOwn() {
    for (int64_t i = 0; i < WantedDocuments(); ++i) {
      const std::vector<int32_t>& ids = documents_[i].ids;
      RF_RETURN_IF_ERROR(
          Count(PathOf(i), TokensDigest(ids), SourceOf(documents_[i]), static_cast<int64_t>(ids.size())));
    }
    return absl::OkStatus();
  }

  absl::Status CollectRows() {
    const int64_t wanted = WantedDocuments();
    std::unique_ptr<Collector> collector;  // made when there is something to do
    for (int64_t i = 0; i < wanted; ++i) {
      const std::string path = PathOf(i);
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
      // Those of more splits than this run's are another run's, and dear.
      if (files_.back()->key().splits == key_.splits) result_.row_files.push_back(path);
      RF_RETURN_IF_ERROR(Progress(FitStage::kRows, i + 1, wanted, tokens));
    }
    return absl::OkStatus();
  }

  absl::Status Collect(Collector& collector, int64_t i, const std::string& path) {
    RF_ASSIGN_OR_RETURN(DocumentRows rows, collector.Collect(documents_[i].ids));
    rows.corpus = options_.corpus;
    rows.digest = TokensDigest(documents_[i].ids);
    rows.source = SourceOf(documents_[i]);
    rows.held_out = i < options_.held_out_documents;
    return SaveRows(path, key_, rows);
  }

  // A file of this run's document i, perhaps of an earlier start.
  absl::Status Take(const std::string& path, int64_t i) {
    const std::string hint = absl::StrCat("cannot go on with ", path, " (remove its folder to start anew)");
    auto opened = RowFile::Open(path);
    if (!opened.ok()) return base::WithContext(opened.status(), hint);
    const RowFile& file = **opened;
    if (absl::Status status = CheckServes(key_, file.key()); !status.ok()) {
      return base::WithContext(status, hint);
    }
    if (file.digest() != TokensDigest(documents_[i].ids) ||
        file.held_out() != (i < options_.held_out_documents)) {
      return base::Error(absl::StatusCode::kFailedPrecondition, "ROWS_OTHER_DOCUMENTS",
                         absl::StrCat(hint, ": it was begun over other documents"));
    }
    Keep(*std::move(opened));
    return absl::OkStatus();
  }

  static RowsSource SourceOf(const Document& document) {
    return {document.file, document.file_digest, document.begin};
  }

  // No text is taken twice: not the same tokens, nor the same part of a file, whatever documents it was cut
  // into.
  absl::Status Count(const std::string& path, const std::string& digest, const RowsSource& source,
                     int64_t tokens) {
    if (!counted_.insert(digest).second) {
      return base::Error(
          absl::StatusCode::kFailedPrecondition, "ROWS_SAME_DOCUMENTS",
          absl::StrCat(path,
                       ": its document is one of this run or of another merged folder, and would "
                       "be counted twice"));
    }
    if (source.digest.empty()) return absl::OkStatus();  // unknown
    const Piece piece = {source.begin, source.begin + tokens, path};
    for (const Piece& other : pieces_[source.digest]) {
      if (piece.end <= other.begin || other.end <= piece.begin) continue;
      return base::Error(
          absl::StatusCode::kFailedPrecondition, "ROWS_SAME_TEXT",
          absl::StrCat(piece.path, ": its tokens [", piece.begin, ", ", piece.end, ") of ", source.file,
                       " are partly those of ", other.path, " ([", other.begin, ", ", other.end,
                       ")): text must not be counted twice, nor be fitted where it is held out"));
    }
    pieces_[source.digest].push_back(piece);
    return absl::OkStatus();
  }

  void Keep(std::unique_ptr<RowFile> file) {
    if (corpora_.insert(file->corpus()).second) {
      absl::StrAppend(&corpus_, corpus_.empty() ? "" : " + ", file->corpus());
    }
    (file->held_out() ? held_out_ : fit_).push_back(file.get());
    files_.push_back(std::move(file));
  }

  absl::Status OpenMerged() {
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
        absl::Status status = OpenMerged(path);
        if (!status.ok()) return base::WithContext(status, absl::StrCat("cannot merge ", path));
      }
    }
    return absl::OkStatus();
  }

  absl::Status OpenMerged(const std::string& path) {
    RF_ASSIGN_OR_RETURN(auto file, RowFile::Open(path));
    RF_RETURN_IF_ERROR(CheckServes(key_, file->key()));
    RF_RETURN_IF_ERROR(CheckMeasured(options_, file->source().digest));
    RF_RETURN_IF_ERROR(Count(path, file->digest(), file->source(), file->tokens()));
    merged_.push_back(std::move(file));
    return absl::OkStatus();
  }

  absl::Status FitSplits() {
    const int64_t steps = static_cast<int64_t>(options_.splits.size());
    int64_t layers = 0, solved = 0;  // of all splits, of those that are done
    for (int split : options_.splits) layers += key_.layers - split - 1;
    for (int64_t i = 0; i < steps; ++i) {
      const int split = options_.splits[i];
      const std::string folder = steps == 1 ? options_.out : absl::StrCat(options_.out, "/split-", split);
      SplitFitter fitter({model_, key_, fit_, held_out_, corpus_, options_, split, folder});
      fitter.progress = [&](FitStage stage, int64_t done, int64_t total) {
        if (stage == FitStage::kSolve) return Progress(stage, solved + done, layers, 0);
        return Progress(stage, i * total + done, steps * total, 0);
      };
      RF_ASSIGN_OR_RETURN(ridge::MapSetManifest manifest, fitter.Run());
      solved += key_.layers - split - 1;
      result_.sets.push_back({folder, std::move(manifest)});
    }
    WarnOfFewRows();
    return absl::OkStatus();
  }

  void WarnOfFewRows() {
    const ridge::MapSetManifest& m = result_.sets.front().manifest;
    const int64_t needed = kRowsPerDimension * ridge::MapInputs(m);
    if (m.fit_rows >= needed) return;
    result_.warnings.push_back(absl::StrCat("fitted on ", m.fit_rows, " rows; at least ", needed, " (",
                                            kRowsPerDimension, " per input dimension) are advised"));
  }

  // Of a file of text.
  struct Piece {
    int64_t begin = 0, end = 0;  // tokens
    std::string path;            // of its rows
  };

  const model::Model& model_;
  const std::vector<Document>& documents_;
  const FitOptions& options_;
  RowsKey key_;
  std::vector<std::unique_ptr<RowFile>> files_, merged_;  // the latter beside this run's
  std::vector<const RowFile*> fit_, held_out_;
  std::set<std::string> counted_, corpora_;
  std::map<std::string, std::vector<Piece>> pieces_;  // by digest of the file of text
  std::string corpus_;
  FitResult result_;
  int64_t tokens_ = 0;
};

}  // namespace

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

void RemoveRows(const FitResult& result) {
  std::error_code ignored;
  for (const std::string& path : result.row_files) std::filesystem::remove(path, ignored);
  rmdir(result.rows_folder.c_str());
}

absl::StatusOr<FitResult> FitMaps(const model::Model& model, const base::ModelIdentity& identity,
                                  const std::vector<Document>& documents, const FitOptions& options) {
  RF_RETURN_IF_ERROR(CheckOptions(model.config(), documents, options));
  return Fitter(model, documents, options).Run(identity);
}

}  // namespace ridgefill::fit
