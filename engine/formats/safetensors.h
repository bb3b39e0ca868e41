// safetensors: one file, or a folder of shards with model.safetensors.index.json, as checked views of
// untrusted bytes; and a writer.
//
// Open() maps and Parse() borrows; both check the whole header: it fits the file, every tensor's byte range
// agrees with its dtype and shape, and the ranges cover the data exactly, without overlap or hole. Tensors
// are views into the map and live as long as the object (also across a move). Thread-safe after construction
// (const access only).
//
// Errors: INVALID_ARGUMENT with reason SAFETENSORS_TRUNCATED, SAFETENSORS_HEADER_LENGTH, SAFETENSORS_HEADER,
// SAFETENSORS_DTYPE, SAFETENSORS_SHAPE, SAFETENSORS_OFFSETS, SAFETENSORS_SIZE, SAFETENSORS_OVERLAP,
// SAFETENSORS_HOLE, SAFETENSORS_SHARD_NAME, SAFETENSORS_DUPLICATE_TENSOR, json.h's and tensor.h's; NOT_FOUND
// with MISSING_TENSOR or FILE_ERROR.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/file.h"
#include "engine/formats/tensor.h"

namespace ridgefill::formats {

using SafetensorsMetadata = std::map<std::string, std::string>;

class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  static absl::StatusOr<SafetensorsFile> Parse(absl::string_view bytes);

  // In order of their bytes.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  bool HasTensor(absl::string_view name) const { return index_.contains(name); }
  absl::StatusOr<TensorBytes> Tensor(absl::string_view name) const;
  const SafetensorsMetadata& metadata() const { return metadata_; }

 private:
  SafetensorsFile() = default;
  absl::Status ReadHeader();

  std::optional<base::MappedFile> map_;  // empty after Parse()
  absl::string_view bytes_;
  std::vector<TensorInfo> tensors_;
  absl::flat_hash_map<std::string, size_t> index_;
  SafetensorsMetadata metadata_;
};

// The weights of a Hugging Face folder: the shards that model.safetensors.index.json lists; without it
// model.safetensors; without that every *.safetensors in the folder. Shard names are plain file names of the
// folder.
class SafetensorsSet {
 public:
  static absl::StatusOr<SafetensorsSet> OpenFolder(const std::string& folder);

  std::vector<std::string> names() const;  // sorted
  bool HasTensor(absl::string_view name) const { return index_.contains(name); }
  absl::StatusOr<TensorBytes> Tensor(absl::string_view name) const;

 private:
  SafetensorsSet() = default;
  absl::Status OpenIndexed(const std::string& folder, absl::string_view index_json);
  absl::Status OpenUnindexed(const std::string& folder, const std::vector<std::string>& file_names);

  std::vector<SafetensorsFile> files_;
  absl::flat_hash_map<std::string, size_t> index_;  // tensor name -> file
};

// Writes atomically, tensors in the given order; info.offset is ignored and byte_size must fit dims. The
// bytes are not copied, so tensors larger than half of the memory can be stored.
absl::Status WriteSafetensors(const std::string& path, absl::Span<const TensorBytes> tensors,
                              const SafetensorsMetadata& metadata = {});

}  // namespace ridgefill::formats
