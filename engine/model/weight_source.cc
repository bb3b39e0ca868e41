#include "engine/model/weight_source.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/check.h"
#include "engine/base/sha256.h"
#include "engine/base/status.h"
#include "engine/formats/quote.h"
#include "engine/model/file_source.h"

namespace ridgefill::model {
namespace {

// Row of the file that holds row `row` of the Hugging Face form: inside a head [2, half] became [half, 2].
int64_t PermutedRow(int64_t row, int64_t rows, int heads) {
  const int64_t head_dim = rows / heads, half = head_dim / 2;
  const int64_t head = row / head_dim, in_head = row % head_dim;
  return head * head_dim + in_head % half * 2 + in_head / half;
}

std::string ShapeText(const std::vector<int64_t>& dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

// A few windows of every tensor: enough to tell any two sets of weights apart, at the price of some pages.
void DigestSample(absl::string_view bytes, base::Sha256& digest) {
  constexpr size_t kWindows = 16, kWindowBytes = 256;
  if (bytes.size() <= kWindows * kWindowBytes) {
    digest.Update(bytes);
    return;
  }
  for (size_t i = 0; i < kWindows; ++i) {
    digest.Update(bytes.substr((bytes.size() - kWindowBytes) / (kWindows - 1) * i, kWindowBytes));
  }
}

}  // namespace

absl::Status WeightTensor::ReadRows(int64_t begin, int64_t count, float* out) const {
  RF_CHECK(reader != nullptr);
  const int64_t rows = dims[0], width = row_elements();
  RF_CHECK(begin >= 0 && count >= 0 && begin + count <= rows);
  const formats::TensorBytes& stored = reader->stored;
  const auto read = [&](int64_t row, int64_t n, float* to) {
    return formats::Dequantize(stored.info.encoding, stored.bytes, row * width,
                               absl::MakeSpan(to, static_cast<size_t>(n * width)));
  };
  if (reader->rope_heads == 0) return read(begin, count, out);
  for (int64_t i = 0; i < count; ++i) {
    RF_RETURN_IF_ERROR(read(PermutedRow(begin + i, rows, reader->rope_heads), 1, out + i * width));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WeightSource>> WeightSource::Open(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return OpenHfFolder(path);
  if (absl::EndsWith(path, ".gguf")) return OpenGguf(path);
  if (!std::filesystem::exists(path, error)) {
    return base::Error(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
                       absl::StrCat("no model at ", formats::Quote(path)), {{"path", path}});
  }
  return base::Error(absl::StatusCode::kInvalidArgument, "MODEL_KIND",
                     absl::StrCat(formats::Quote(path),
                                  " is neither a .gguf file nor a folder with config.json and *.safetensors"),
                     {{"path", path}});
}

absl::Status FileSource::Add(const TensorSpec& spec, const formats::TensorBytes& stored, int rope_heads) {
  const formats::TensorInfo& info = stored.info;
  if (info.dims != spec.dims) {
    return base::Error(absl::StatusCode::kInvalidArgument, "TENSOR_SHAPE",
                       absl::StrCat("tensor ", formats::Quote(info.name), " is ", ShapeText(info.dims),
                                    "; the model's configuration asks for ", ShapeText(spec.dims)),
                       {{"tensor", info.name}});
  }
  // Read a block now, so that an encoding without a reader is an error here and not while packing.
  std::vector<float> block(formats::BlockElements(info.encoding));
  RF_RETURN_IF_ERROR(base::WithContext(
      formats::Dequantize(info.encoding, stored.bytes, 0, absl::MakeSpan(block)), formats::Quote(info.name)));
  WeightTensor tensor{spec.hf_name, spec.dims, std::string(formats::EncodingName(info.encoding)),
                      std::make_shared<WeightTensor::Reader>(WeightTensor::Reader{stored, rope_heads})};
  RF_CHECK(index_.emplace(spec.hf_name, tensors_.size()).second);
  tensors_.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::StatusOr<WeightTensor> FileSource::Find(absl::string_view hf_name) const {
  const auto it = index_.find(hf_name);
  if (it != index_.end()) return tensors_[it->second];
  return base::Error(absl::StatusCode::kNotFound, "MISSING_TENSOR",
                     absl::StrCat(path_, ": no tensor ", formats::Quote(hf_name)),
                     {{"tensor", std::string(hf_name)}});
}

std::string FileSource::weights_digest() const {
  base::Sha256 digest;
  for (const WeightTensor& tensor : tensors_) {
    digest.Update(absl::StrCat(tensor.name, " ", ShapeText(tensor.dims), " ", tensor.encoding, "\n"));
    DigestSample(tensor.reader->stored.bytes, digest);
  }
  return digest.HexDigest();
}

absl::Status UnexpectedTensor(absl::string_view arch, absl::string_view tensor) {
  return base::Error(absl::StatusCode::kUnimplemented, "UNEXPECTED_TENSOR",
                     absl::StrCat("tensor ", formats::Quote(tensor), " is no part of ", arch,
                                  " as this build knows it; leaving it out would change the model"),
                     {{"tensor", std::string(tensor)}});
}

}  // namespace ridgefill::model
