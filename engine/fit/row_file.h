// What a fit is solved from: the rows of calibration text as the exact model sees them, one safetensors file
// a document (docs/formats.md). Files of several runs, over other text or on other machines, are solved
// together; any split, mixture, weighting or penalty can be solved from them without another pass of the
// model.
//
// Plain data, not thread-safe. Errors: INVALID_ARGUMENT or FAILED_PRECONDITION (ROWS_...), naming file and
// difference.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/model_identity.h"
#include "engine/formats/json.h"
#include "engine/formats/safetensors.h"

namespace ridgefill::fit {

// What rows were taken of. Only rows of the same model go together, and serve the splits that they are of.
struct RowsKey {
  base::ModelIdentity model;
  int layers = 0, hidden = 0, kv_width = 0, heads_kv = 0;
  std::vector<int> splits;    // ascending
  int64_t mass_distance = 0;  // rows nearer than this to a query count as its neighbourhood (below)
};

// The text that a document was cut from: its tokens are [begin, begin + tokens) of the file's.
struct RowsSource {
  std::string file;    // plain name, for people
  std::string digest;  // sha256 of the file; empty: unknown, as in rows of older programs
  int64_t begin = 0;
};

// One document's rows.
struct DocumentRows {
  std::string corpus;  // for people
  std::string digest;  // sha256 of its tokens
  RowsSource source;
  bool held_out = false;  // chosen by, never fitted on
  int64_t tokens = 0;
  std::map<int, std::vector<float>> hidden;  // by split: h_S [tokens, d]
  // By layer above the lowest split: K, then V, before K-norm and RoPE, bf16 [tokens, 2 * kv_width].
  std::map<int, std::vector<uint16_t>> kv;
  // By layer likewise, [heads_kv, tokens]: the mean probability with which a query at least mass_distance
  // rows later attends to the row, summed over the queries of the KV head's group; 0 without such a query.
  std::map<int, std::vector<float>> mass;
};

absl::Status SaveRows(const std::string& path, const RowsKey& key, const DocumentRows& rows);

// A file of rows, memory-mapped.
class RowFile {
 public:
  // Refused by name: fewer than 2 tokens (ROWS_HEADER), values that no model gives (ROWS_VALUES).
  static absl::StatusOr<std::unique_ptr<RowFile>> Open(const std::string& path);

  const RowsKey& key() const { return key_; }
  const std::string& path() const { return path_; }
  const std::string& corpus() const { return corpus_; }
  const std::string& digest() const { return digest_; }
  const RowsSource& source() const { return source_; }
  bool held_out() const { return held_out_; }
  int64_t tokens() const { return tokens_; }
  // Shapes as in DocumentRows; of a split or layer that the key has.
  absl::Span<const float> Hidden(int split) const { return hidden_.at(split); }
  absl::Span<const uint16_t> Kv(int layer) const { return kv_.at(layer); }
  absl::Span<const float> Mass(int layer) const { return mass_.at(layer); }

 private:
  explicit RowFile(formats::SafetensorsFile file) : file_(std::move(file)) {}
  absl::Status ParseHeader();
  absl::Status ParseSource(const formats::Json& json);
  absl::Status FindTensors();
  absl::Status CheckValues() const;
  template <typename T>
  absl::Status Find(const std::string& name, formats::Encoding encoding, const std::vector<int64_t>& dims,
                    absl::Span<const T>& out) const;

  formats::SafetensorsFile file_;
  std::string path_;
  RowsKey key_;
  std::string corpus_, digest_;
  RowsSource source_;
  bool held_out_ = false;
  int64_t tokens_ = 0;
  std::map<int, absl::Span<const float>> hidden_, mass_;
  std::map<int, absl::Span<const uint16_t>> kv_;
};

// Whether `rows` serve what `wanted` asks for: all of its splits are among theirs. ROWS_OTHER_MODEL,
// ROWS_OTHER_SPLITS or ROWS_OTHER_DISTANCE: FAILED_PRECONDITION naming both values.
absl::Status CheckServes(const RowsKey& wanted, const RowsKey& rows);

}  // namespace ridgefill::fit
