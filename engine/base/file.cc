#include "engine/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace ridgefill::base {
namespace {

absl::Status Failed(absl::string_view what, const std::string& path, int error) {
  const auto code = error == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable;
  return Error(code, "FILE_ERROR", absl::StrCat(what, " ", path, ": ", std::strerror(error)),
               {{"path", path}});
}

// Closes on scope exit.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("cannot write", path, errno);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return Failed("cannot open", path, errno);
  struct stat info;
  if (fstat(file.fd, &info) != 0) return Failed("cannot stat", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return Error(absl::StatusCode::kInvalidArgument, "FILE_ERROR",
                 absl::StrCat(path, " is not a regular file"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) return MappedFile(path, nullptr, 0);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) return Failed("cannot map", path, errno);
  return MappedFile(path, data, size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  RF_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return std::string(file.bytes());
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes) {
  return WritePiecesAtomically(path, {bytes});
}

absl::Status WritePiecesAtomically(const std::string& path, absl::Span<const absl::string_view> pieces) {
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid());
  {
    const Descriptor file{open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (file.fd < 0) return Failed("cannot create", temporary, errno);
    for (const absl::string_view piece : pieces) {
      if (absl::Status status = WriteAll(file.fd, piece, temporary); !status.ok()) {
        unlink(temporary.c_str());
        return status;
      }
    }
    if (fsync(file.fd) != 0) return Failed("cannot sync", temporary, errno);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) return Failed("cannot rename to", path, errno);
  return absl::OkStatus();
}

}  // namespace ridgefill::base
