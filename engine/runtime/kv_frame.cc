#include "engine/runtime/kv_frame.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "kernels/api/attention.h"

namespace ridgefill::runtime {
namespace {

absl::Status Compare(absl::string_view reason, absl::string_view what, absl::string_view mine,
                     absl::string_view peer) {
  if (mine == peer) return absl::OkStatus();
  return base::Error(
      absl::StatusCode::kFailedPrecondition, reason,
      absl::StrCat("the two workers differ in their ", what, ": here ", mine, ", peer ", peer));
}

absl::string_view OrNone(absl::string_view digest) { return digest.empty() ? "none" : digest; }

}  // namespace

absl::Status CheckHello(const Hello& mine, const Hello& peer, int split) {
  RF_RETURN_IF_ERROR(Compare("PEER_PROTOCOL", "protocol major version", absl::StrCat(mine.protocol_major),
                             absl::StrCat(peer.protocol_major)));
  RF_RETURN_IF_ERROR(Compare("PEER_MODEL", "model architecture", mine.model.arch, peer.model.arch));
  RF_RETURN_IF_ERROR(Compare("PEER_MODEL", "model dimensions", mine.model.dimensions, peer.model.dimensions));
  RF_RETURN_IF_ERROR(Compare("PEER_MODEL", "weights", mine.model.weights_digest, peer.model.weights_digest));
  RF_RETURN_IF_ERROR(
      Compare("PEER_TOKENIZER", "tokenizer", mine.model.tokenizer_digest, peer.model.tokenizer_digest));
  RF_RETURN_IF_ERROR(Compare("PEER_LAYOUT", "cache layout", mine.cache_layout, peer.cache_layout));
  if (split == 0) return absl::OkStatus();
  return Compare("PEER_MAPS", absl::StrCat("map set of split ", split), OrNone(MapsDigest(mine, split)),
                 OrNone(MapsDigest(peer, split)));
}

absl::string_view MapsDigest(const Hello& hello, int split) {
  for (const MapSetIdentity& maps : hello.maps) {
    if (maps.split == split) return maps.digest;
  }
  return "";
}

std::string CacheLayout(const model::ModelConfig& config) {
  return absl::StrCat("bf16[", kernels::kBlockTokens, ", ", config.heads_kv, ", ", config.head_dim, "] x ",
                      config.layers);
}

}  // namespace ridgefill::runtime
