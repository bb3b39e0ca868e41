// The WeightSource over mapped files: a checked table of stored tensors under their Hugging Face names.
//
// Filled once by the opener of a container (gguf_source.cc, hf_source.cc), read-only and thread-safe from
// then on. Owns the container. Internal to engine/model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/formats/gguf.h"
#include "engine/formats/safetensors.h"
#include "engine/model/arch_spec.h"
#include "engine/model/weight_source.h"

namespace ridgefill::model {

struct WeightTensor::Reader {
  formats::TensorBytes stored;  // borrowed from the container
  int rope_heads = 0;  // rows are stored permuted for interleaved RoPE in this many heads; 0: as they are
};

class FileSource final : public WeightSource {
 public:
  FileSource(std::string path, ModelConfig config) : path_(std::move(path)), config_(std::move(config)) {}

  void Own(std::unique_ptr<formats::GgufFile> gguf) { gguf_ = std::move(gguf); }
  void Own(std::unique_ptr<formats::SafetensorsSet> safetensors) { safetensors_ = std::move(safetensors); }
  // INVALID_ARGUMENT TENSOR_SHAPE or TENSOR_ENCODING, naming the tensor as the file does.
  absl::Status Add(const TensorSpec& spec, const formats::TensorBytes& stored, int rope_heads);

  const ModelConfig& config() const override { return config_; }
  const std::string& path() const override { return path_; }
  absl::StatusOr<WeightTensor> Find(absl::string_view hf_name) const override;
  const formats::GgufFile* gguf() const override { return gguf_.get(); }
  std::string weights_digest() const override;

 private:
  std::string path_;
  ModelConfig config_;
  std::unique_ptr<formats::GgufFile> gguf_;
  std::unique_ptr<formats::SafetensorsSet> safetensors_;
  std::vector<WeightTensor> tensors_;  // in the order of the architecture's table
  absl::flat_hash_map<std::string, size_t> index_;
};

absl::StatusOr<std::unique_ptr<WeightSource>> OpenGguf(const std::string& path);
absl::StatusOr<std::unique_ptr<WeightSource>> OpenHfFolder(const std::string& folder);

// INVALID_ARGUMENT UNEXPECTED_TENSOR: the file holds a weight that the architecture as we know it would leave
// unused.
absl::Status UnexpectedTensor(absl::string_view arch, absl::string_view tensor);

}  // namespace ridgefill::model
