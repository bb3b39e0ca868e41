// Files as bytes. Reading is by memory map; writing is atomic (a temporary beside the target, then rename).
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ridgefill::base {

// A read-only map of a whole file; owns the map, movable. NOT_FOUND or INVALID_ARGUMENT name the path.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  absl::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, void* data, size_t size) : path_(std::move(path)), data_(data), size_(size) {}
  std::string path_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

absl::StatusOr<std::string> ReadFile(const std::string& path);
absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes);
// The same for a file that is the concatenation of `pieces`, which need not lie together in memory.
absl::Status WritePiecesAtomically(const std::string& path, absl::Span<const absl::string_view> pieces);

}  // namespace ridgefill::base
