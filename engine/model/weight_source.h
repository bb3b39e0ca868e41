// A model on disk: a GGUF file or a Hugging Face folder, both giving the same tensors under Hugging Face
// names.
//
// Thread-safe after Open. Borrowing: WeightTensor must not outlive its source. Errors name the file and the
// tensor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/config.h"

namespace ridgefill::formats {
class GgufFile;
}

namespace ridgefill::model {

// One tensor, widened row by row on demand so that no whole tensor is ever held in f32.
struct WeightTensor {
  std::string name;           // Hugging Face name
  std::vector<int64_t> dims;  // row-major: [out_features, in_features], [d], ...
  std::string encoding;       // as the file stores it: "Q4_1", "BF16", ...
  // f32 values of rows [begin, begin + count) (of the vector itself when rank 1), in Hugging Face order.
  absl::Status ReadRows(int64_t begin, int64_t count, float* out) const;
  int64_t row_elements() const { return dims.size() < 2 ? 1 : dims[1]; }

  struct Reader;
  std::shared_ptr<const Reader> reader;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // `path` is a .gguf file or a folder with config.json. Refuses by name: unknown architectures and RoPE
  // scalings, missing tensors, wrong shapes.
  static absl::StatusOr<std::unique_ptr<WeightSource>> Open(const std::string& path);

  virtual const ModelConfig& config() const = 0;
  virtual const std::string& path() const = 0;
  virtual absl::StatusOr<WeightTensor> Find(absl::string_view hf_name) const = 0;
  // The GGUF file behind the source, for its tokenizer; null for a folder.
  virtual const formats::GgufFile* gguf() const = 0;
  // base::ModelIdentity::weights_digest.
  virtual std::string weights_digest() const = 0;
};

}  // namespace ridgefill::model
