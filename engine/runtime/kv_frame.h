// What travels from prefill to decode: one transfer is a sequence of frames, numbered from 0 and checksummed.
//
//   Kv ...  Hidden ...  Scores  Plan  Sealed    (Kv and Hidden interleave as the chunks finish; Plan and
//   Sealed close)
//
// Every layer's tokens arrive in ascending order without gaps: layers below the split [0, N), late layers
// [0, tail_begin); all layers [0, N) after a late pass on prefill. Hidden rows arrive in any order, each
// once. In wire form `hidden` late layers have no tokens, every row comes as a hidden row, and Scores come
// once where the selector looks at the lower layers' attention. TransferChecker holds a stream against this.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/base/model_identity.h"
#include "engine/model/config.h"
#include "engine/ridge/fill_plan.h"

namespace ridgefill::runtime {

// 128 random bits, made by the decode worker.
struct TransferId {
  uint64_t high = 0;
  uint64_t low = 0;
  friend bool operator==(const TransferId&, const TransferId&) = default;
};

// One of a worker's map sets.
struct MapSetIdentity {
  int split = 0;
  std::string digest;
  friend bool operator==(const MapSetIdentity&, const MapSetIdentity&) = default;
};

// What both workers must agree on before any frame: protocol major version, model, cache layout, and of the
// map sets the one that the request takes.
struct Hello {
  // 3: a worker has map sets of several splits, where 2 had one without saying which.
  int protocol_major = 3;
  int protocol_minor = 0;
  base::ModelIdentity model;
  std::vector<MapSetIdentity> maps;  // of different splits, the default one first
  std::string cache_layout;  // "bf16[64, 3, 64] x 30": dtype, block tokens, kv heads, head_dim, layers
};

// FAILED_PRECONDITION (PEER_PROTOCOL, PEER_MODEL, PEER_TOKENIZER, PEER_MAPS, PEER_LAYOUT) naming both sides'
// values. Of the maps those of `split` are compared, with 0 none; weights_digest must agree as well: both
// workers run one model.
absl::Status CheckHello(const Hello& mine, const Hello& peer, int split);
// Of the map set of a split; empty: there is none.
absl::string_view MapsDigest(const Hello& hello, int split);
// Hello::cache_layout of a model.
std::string CacheLayout(const model::ModelConfig& config);

// One prefill, as the decode worker asks for it.
struct PrefillCall {
  TransferId id;
  Hello hello;
  std::vector<int32_t> tokens;
  ridge::FillDecision decision;
  absl::Time deadline = absl::InfiniteFuture();
  std::string trace_parent;  // W3C trace context, passed through
};

// K and V of tokens [token_begin, token_begin + token_count) of layers [layer_begin, layer_end), layer by
// layer in the canonical form of kernels::KvSpan.
struct KvBody {
  int layer_begin = 0, layer_end = 0;
  int64_t token_begin = 0, token_count = 0;
};

// Residual rows entering `layer`, f32 [positions, d], positions ascending. layer == split: rows of the exact
// set for the late pass on decode, or every row in wire form `hidden`; layer == L: the last row after a late
// pass on prefill, only final norm and head are left.
struct HiddenBody {
  int layer = 0;
  std::vector<int32_t> positions;
};

// Wire form `hidden`: what SelectionScores gives of the prompt, f32 [tokens].
struct ScoresBody {
  int64_t tokens = 0;
};

// The final plan: which rows are exact and why, and where the prefill worker's time went. In wire form
// `hidden` the plan is the decode worker's to make: this one has its lengths and no rows.
struct PlanBody {
  ridge::FillPlan plan;
  bool batch_invariant = true;
  absl::Duration queue_time;    // waiting for the prefill engine
  absl::Duration compute_time;  // from the first chunk's start to the last frame handed to the sink
};

struct SealedBody {
  int64_t tokens = 0;
  uint64_t frames = 0;  // frames before this one
  uint32_t digest = 0;  // crc32c over the crc32c of every frame before this one, in order, little-endian
};

struct KvFrame {
  uint64_t sequence = 0;
  std::variant<KvBody, HiddenBody, ScoresBody, PlanBody, SealedBody> body;
  std::string payload;  // bytes of Kv, Hidden and Scores frames
  uint32_t crc32c = 0;  // of the payload
};

}  // namespace ridgefill::runtime
