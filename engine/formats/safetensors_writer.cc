#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/base/status.h"
#include "engine/formats/json.h"
#include "engine/formats/quote.h"
#include "engine/formats/safetensors.h"

namespace ridgefill::formats {
namespace {

absl::Status Refuse(absl::string_view name, absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kInvalidArgument, reason,
                     absl::StrCat("safetensors: tensor ", Quote(name), " ", message));
}

absl::Status CheckWritable(const TensorBytes& tensor) {
  const TensorInfo& info = tensor.info;
  if (BlockElements(info.encoding) != 1) {
    return Refuse(info.name, "SAFETENSORS_DTYPE",
                  absl::StrCat(EncodingName(info.encoding), " has no safetensors dtype"));
  }
  RF_ASSIGN_OR_RETURN(const uint64_t needed, ByteSize(info.encoding, info.dims));
  if (tensor.bytes.size() == needed) return absl::OkStatus();
  return Refuse(info.name, "SAFETENSORS_SIZE",
                absl::StrCat("has ", tensor.bytes.size(), " bytes, its dtype and shape need ", needed));
}

// Length prefix and header, padded so that the data starts on a multiple of 8.
absl::StatusOr<std::string> Preamble(absl::Span<const TensorBytes> tensors,
                                     const SafetensorsMetadata& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const TensorBytes& tensor : tensors) {
    RF_RETURN_IF_ERROR(CheckWritable(tensor));
    const uint64_t end = offset + tensor.bytes.size();
    Json entry = {{"dtype", std::string(EncodingName(tensor.info.encoding))},
                  {"shape", tensor.info.dims},
                  {"data_offsets", {offset, end}}};
    if (tensor.info.name == "__metadata__" || header.contains(tensor.info.name)) {
      return Refuse(tensor.info.name, "SAFETENSORS_DUPLICATE_TENSOR",
                    "is given twice or has the reserved name");
    }
    header[tensor.info.name] = std::move(entry);
    offset = end;
  }
  // Replaces invalid UTF-8 rather than throw; names come from us.
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string preamble(reinterpret_cast<const char*>(&length), sizeof(length));
  return preamble + text;
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, absl::Span<const TensorBytes> tensors,
                              const SafetensorsMetadata& metadata) {
  RF_ASSIGN_OR_RETURN(const std::string preamble, Preamble(tensors, metadata));
  std::vector<absl::string_view> pieces = {preamble};
  for (const TensorBytes& tensor : tensors) pieces.push_back(tensor.bytes);
  return base::WritePiecesAtomically(path, pieces);
}

}  // namespace ridgefill::formats
