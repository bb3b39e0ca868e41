#include "engine/formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"
#include "engine/formats/json.h"
#include "engine/formats/quote.h"

namespace ridgefill::formats {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kLongestHeader = 100'000'000;  // the format's own limit
constexpr absl::string_view kMetadataKey = "__metadata__";

absl::Status Refuse(absl::string_view reason, absl::string_view message,
                    std::vector<std::pair<std::string, std::string>> metadata = {}) {
  return base::Error(absl::StatusCode::kInvalidArgument, reason, absl::StrCat("safetensors: ", message),
                     std::move(metadata));
}

absl::Status RefuseTensor(absl::string_view name, absl::string_view reason, absl::string_view message) {
  const std::string quoted = Quote(name);
  return Refuse(reason, absl::StrCat("tensor ", quoted, " ", message), {{"tensor", quoted}});
}

std::optional<Encoding> EncodingOf(absl::string_view dtype) {
  for (const Encoding encoding :
       {Encoding::kF32, Encoding::kF16, Encoding::kBF16, Encoding::kF64, Encoding::kBool, Encoding::kI8,
        Encoding::kU8, Encoding::kI16, Encoding::kU16, Encoding::kI32, Encoding::kU32, Encoding::kI64,
        Encoding::kU64}) {
    if (EncodingName(encoding) == dtype) return encoding;
  }
  return std::nullopt;
}

// The header's text: the file's first eight bytes give its length.
absl::StatusOr<absl::string_view> HeaderText(absl::string_view file) {
  if (file.size() < kLengthBytes) {
    return Refuse("SAFETENSORS_TRUNCATED",
                  absl::StrCat("the file has ", file.size(), " bytes, at least 8 are needed"));
  }
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const uint64_t most = std::min<uint64_t>(kLongestHeader, file.size() - kLengthBytes);
  if (length > most) {
    return Refuse("SAFETENSORS_HEADER_LENGTH",
                  absl::StrCat("the header claims ", length, " bytes, at most ", most, " are possible"));
  }
  const absl::string_view text = file.substr(kLengthBytes, length);
  if (text.empty() || text[0] != '{') return Refuse("SAFETENSORS_HEADER", "the header does not start with {");
  return text;
}

absl::Status ReadMetadata(const Json& header, SafetensorsMetadata* metadata) {
  const auto found = header.find(kMetadataKey);
  if (found == header.end()) return absl::OkStatus();
  if (!found->is_object()) return Refuse("SAFETENSORS_HEADER", "__metadata__ is not an object");
  for (const auto& [key, value] : found->items()) {
    if (!value.is_string()) {
      return Refuse("SAFETENSORS_HEADER", absl::StrCat("__metadata__ key ", Quote(key), " is not a string"));
    }
    metadata->emplace(key, value.get_ref<const std::string&>());
  }
  return absl::OkStatus();
}

// Offsets come out relative to the data section.
absl::StatusOr<TensorInfo> ReadInfo(const std::string& name, const Json& entry) {
  TensorInfo info;
  info.name = name;
  const auto dtype = GetString(entry, "dtype");
  if (!dtype.ok()) return RefuseTensor(name, "SAFETENSORS_DTYPE", dtype.status().message());
  const std::optional<Encoding> encoding = EncodingOf(*dtype);
  if (!encoding) {
    return RefuseTensor(name, "SAFETENSORS_DTYPE",
                        absl::StrCat("has dtype ", Quote(*dtype),
                                     "; supported are F64 F32 F16 BF16 BOOL and I and U of 8 to 64 bits"));
  }
  info.encoding = *encoding;
  auto shape = GetInts(entry, "shape");
  if (!shape.ok()) return RefuseTensor(name, "SAFETENSORS_SHAPE", shape.status().message());
  info.dims = *std::move(shape);
  const auto bytes = ByteSize(info.encoding, info.dims);
  if (!bytes.ok())
    return RefuseTensor(name, base::GetErrorDetail(bytes.status())->reason, bytes.status().message());
  info.byte_size = *bytes;

  const auto offsets = GetInts(entry, "data_offsets");
  if (!offsets.ok()) return RefuseTensor(name, "SAFETENSORS_OFFSETS", offsets.status().message());
  if (offsets->size() != 2 || (*offsets)[0] < 0 || (*offsets)[1] < (*offsets)[0]) {
    return RefuseTensor(name, "SAFETENSORS_OFFSETS",
                        "needs data_offsets [begin, end] with 0 <= begin <= end");
  }
  info.offset = static_cast<uint64_t>((*offsets)[0]);
  const uint64_t taken = static_cast<uint64_t>((*offsets)[1]) - info.offset;
  if (taken != info.byte_size) {
    return RefuseTensor(name, "SAFETENSORS_SIZE",
                        absl::StrCat("takes ", taken, " bytes, its dtype and shape need ", info.byte_size));
  }
  return info;
}

// `sorted` by offset; the data section is [0, available).
absl::Status CheckLayout(absl::Span<const TensorInfo> sorted, uint64_t available) {
  uint64_t end = 0;
  for (const TensorInfo& info : sorted) {
    if (info.offset > available || info.byte_size > available - info.offset) {
      return RefuseTensor(info.name, "SAFETENSORS_TRUNCATED",
                          absl::StrCat("ends at byte ", info.offset + info.byte_size,
                                       " of the data, the file has ", available));
    }
    if (info.offset < end)
      return RefuseTensor(info.name, "SAFETENSORS_OVERLAP", "overlaps the tensor before it");
    if (info.offset > end) {
      return RefuseTensor(info.name, "SAFETENSORS_HOLE",
                          absl::StrCat("leaves ", info.offset - end, " bytes unused"));
    }
    end = info.offset + info.byte_size;
  }
  if (end == available) return absl::OkStatus();
  return Refuse("SAFETENSORS_HOLE", absl::StrCat(available - end, " bytes follow the last tensor"));
}

absl::Status MissingTensor(absl::string_view name) {
  return base::Error(absl::StatusCode::kNotFound, "MISSING_TENSOR",
                     absl::StrCat("safetensors: tensor ", Quote(name), " is missing"));
}

absl::Status CheckShardName(absl::string_view tensor, absl::string_view shard) {
  const bool is_plain = absl::EndsWith(shard, ".safetensors") && !absl::StartsWith(shard, ".") &&
                        shard.find_first_of(absl::string_view("/\\\0", 3)) == absl::string_view::npos;
  if (is_plain) return absl::OkStatus();
  return RefuseTensor(
      tensor, "SAFETENSORS_SHARD_NAME",
      absl::StrCat("lies in shard ", Quote(shard), ", which is no plain *.safetensors file name"));
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  RF_ASSIGN_OR_RETURN(base::MappedFile map, base::MappedFile::Open(path));
  absl::StatusOr<SafetensorsFile> file = Parse(map.bytes());
  if (!file.ok()) return base::WithContext(file.status(), path);
  file->map_ = std::move(map);
  return file;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(absl::string_view bytes) {
  SafetensorsFile file;
  file.bytes_ = bytes;
  RF_RETURN_IF_ERROR(file.ReadHeader());
  return file;
}

absl::Status SafetensorsFile::ReadHeader() {
  RF_ASSIGN_OR_RETURN(const absl::string_view text, HeaderText(bytes_));
  // A header is three levels deep; its length is already bounded.
  RF_ASSIGN_OR_RETURN(const Json header, ParseJson(text, {.max_bytes = kLongestHeader, .max_depth = 4}));
  RF_RETURN_IF_ERROR(ReadMetadata(header, &metadata_));
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadataKey) continue;
    RF_ASSIGN_OR_RETURN(TensorInfo info, ReadInfo(name, entry));
    tensors_.push_back(std::move(info));
  }
  // Empty tensors share their offset with the next one, so they go first.
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.offset, a.byte_size) < std::pair(b.offset, b.byte_size);
  });
  const uint64_t data = kLengthBytes + text.size();
  RF_RETURN_IF_ERROR(CheckLayout(tensors_, bytes_.size() - data));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].offset += data;
    index_.emplace(tensors_[i].name, i);
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorBytes> SafetensorsFile::Tensor(absl::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) return MissingTensor(name);
  const TensorInfo& info = tensors_[found->second];
  return TensorBytes{info, bytes_.substr(info.offset, info.byte_size)};
}

absl::StatusOr<SafetensorsSet> SafetensorsSet::OpenFolder(const std::string& folder) {
  const std::filesystem::path root(folder);
  SafetensorsSet set;
  std::error_code error;
  const std::filesystem::path index = root / "model.safetensors.index.json";
  if (std::filesystem::exists(index, error)) {
    RF_ASSIGN_OR_RETURN(const base::MappedFile map, base::MappedFile::Open(index.string()));
    if (absl::Status status = set.OpenIndexed(folder, map.bytes()); !status.ok()) {
      return base::WithContext(status, index.string());
    }
    return set;
  }
  std::vector<std::string> names;
  if (std::filesystem::exists(root / "model.safetensors", error)) {
    names.push_back("model.safetensors");
  } else {
    for (auto it = std::filesystem::directory_iterator(root, error);
         !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
      if (it->path().extension() == ".safetensors") names.push_back(it->path().filename().string());
    }
    std::sort(names.begin(), names.end());
  }
  if (names.empty()) {
    return base::Error(absl::StatusCode::kNotFound, "FILE_ERROR",
                       absl::StrCat(folder, " has no model.safetensors.index.json and no *.safetensors"));
  }
  RF_RETURN_IF_ERROR(set.OpenUnindexed(folder, names));
  return set;
}

absl::Status SafetensorsSet::OpenIndexed(const std::string& folder, absl::string_view index_json) {
  RF_ASSIGN_OR_RETURN(const Json index, ParseJson(index_json));
  RF_ASSIGN_OR_RETURN(const Json* weight_map, GetObject(index, "weight_map"));
  std::map<std::string, size_t> opened;  // shard name -> file
  for (const auto& [tensor, value] : weight_map->items()) {
    if (!value.is_string())
      return RefuseTensor(tensor, "SAFETENSORS_SHARD_NAME", "has a shard that is no string");
    const std::string& shard = value.get_ref<const std::string&>();
    RF_RETURN_IF_ERROR(CheckShardName(tensor, shard));
    const auto [entry, is_new] = opened.try_emplace(shard, files_.size());
    if (is_new) {
      RF_ASSIGN_OR_RETURN(SafetensorsFile file,
                          SafetensorsFile::Open((std::filesystem::path(folder) / shard).string()));
      files_.push_back(std::move(file));
    }
    if (!files_[entry->second].HasTensor(tensor)) {
      return base::WithContext(MissingTensor(tensor), absl::StrCat("shard ", Quote(shard)));
    }
    index_.emplace(tensor, entry->second);
  }
  return absl::OkStatus();
}

absl::Status SafetensorsSet::OpenUnindexed(const std::string& folder,
                                           const std::vector<std::string>& file_names) {
  for (const std::string& name : file_names) {
    RF_ASSIGN_OR_RETURN(SafetensorsFile file,
                        SafetensorsFile::Open((std::filesystem::path(folder) / name).string()));
    for (const TensorInfo& info : file.tensors()) {
      if (index_.emplace(info.name, files_.size()).second) continue;
      return RefuseTensor(info.name, "SAFETENSORS_DUPLICATE_TENSOR",
                          absl::StrCat("is in two files of ", folder, ", the second is ", Quote(name)));
    }
    files_.push_back(std::move(file));
  }
  return absl::OkStatus();
}

std::vector<std::string> SafetensorsSet::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : index_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<TensorBytes> SafetensorsSet::Tensor(absl::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) return MissingTensor(name);
  return files_[found->second].Tensor(name);
}

}  // namespace ridgefill::formats
