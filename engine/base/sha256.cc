#include "engine/base/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <cstdio>

#include "absl/strings/escaping.h"
#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/status.h"

namespace ridgefill::base {

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  RF_CHECK(EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

Sha256& Sha256::Update(absl::string_view bytes) {
  RF_CHECK(EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()) == 1);
  return *this;
}

std::string Sha256::HexDigest() {
  std::array<unsigned char, 32> digest;
  unsigned int size = 0;
  RF_CHECK(EVP_DigestFinal_ex(impl_->context, digest.data(), &size) == 1 && size == digest.size());
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
}

std::string Sha256Hex(absl::string_view bytes) { return Sha256().Update(bytes).HexDigest(); }

absl::StatusOr<std::string> Sha256HexOfFile(const std::string& path) {
  RF_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return Sha256Hex(file.bytes());
}

}  // namespace ridgefill::base
