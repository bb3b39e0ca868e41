// SHA-256 (OpenSSL), for fingerprints and for checking files.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridgefill::base {

// Incremental digest. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  Sha256& Update(absl::string_view bytes);
  // 64 lower-case hex digits; the object takes no more input afterwards.
  std::string HexDigest();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string Sha256Hex(absl::string_view bytes);
absl::StatusOr<std::string> Sha256HexOfFile(const std::string& path);

}  // namespace ridgefill::base
