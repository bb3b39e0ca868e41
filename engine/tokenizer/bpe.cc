#include "engine/tokenizer/bpe.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "engine/tokenizer/byte_level.h"

namespace ridgefill::tokenizer {
namespace {

// The candidate that merges first: lowest rank, then leftmost. A heap's top is its greatest element.
bool MergesLater(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

absl::Status MissingToken(size_t rank, absl::string_view part) {
  return base::Error(absl::StatusCode::kInvalidArgument, "TOKENIZER_INVALID",
                     absl::StrCat("merge ", rank, " needs a token of ", part.size(),
                                  " bytes that the vocabulary does not have"));
}

}  // namespace

absl::StatusOr<Bpe> Bpe::Create(const TokenizerSpec& spec, const std::vector<std::string>& token_bytes) {
  Bpe bpe;
  bpe.byte_ids_.fill(-1);
  bpe.unk_id_ = spec.unk_id;
  absl::flat_hash_map<absl::string_view, int32_t> ids;
  ids.reserve(spec.vocab.size());
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    if (!spec.vocab[id].empty()) ids.emplace(spec.vocab[id], static_cast<int32_t>(id));
  }
  absl::flat_hash_set<int32_t> added;
  for (const AddedToken& token : spec.added) added.insert(token.id);
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    if (spec.vocab[id].empty()) continue;
    const std::optional<std::string> bytes = ByteLevelToBytes(spec.vocab[id]);
    if (!bytes.has_value()) continue;
    if (bytes->size() == 1) bpe.byte_ids_[static_cast<uint8_t>((*bytes)[0])] = static_cast<int32_t>(id);
    if (spec.ignore_merges && !added.contains(id))
      bpe.words_.emplace(token_bytes[id], static_cast<int32_t>(id));
  }
  bpe.merges_.reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    const std::string merged = left + right;
    const auto left_id = ids.find(left), right_id = ids.find(right), merged_id = ids.find(merged);
    if (left_id == ids.end()) return MissingToken(rank, left);
    if (right_id == ids.end()) return MissingToken(rank, right);
    if (merged_id == ids.end()) return MissingToken(rank, merged);
    bpe.merges_[Key(left_id->second, right_id->second)] = {static_cast<int32_t>(rank), merged_id->second};
  }
  return bpe;
}

void Bpe::QueuePair(int32_t left_index, Scratch& scratch) const {
  const Scratch::Symbol& left = scratch.symbols[left_index];
  if (left.next < 0) return;
  const int32_t right_id = scratch.symbols[left.next].id;
  const auto merge = merges_.find(Key(left.id, right_id));
  if (merge == merges_.end()) return;
  scratch.heap.push_back({merge->second.rank, left_index, left.id, right_id, merge->second.merged});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), MergesLater);
  ++scratch.pushes;
}

void Bpe::Load(absl::string_view word, Scratch& scratch) const {
  scratch.symbols.clear();
  scratch.heap.clear();
  for (char c : word) {
    const int32_t byte_id = byte_ids_[static_cast<uint8_t>(c)];
    const int32_t id = byte_id >= 0 ? byte_id : unk_id_;
    if (id < 0) continue;
    const int32_t index = static_cast<int32_t>(scratch.symbols.size());
    scratch.symbols.push_back({id, index - 1, index + 1, true});
  }
  if (!scratch.symbols.empty()) scratch.symbols.back().next = -1;
  for (size_t i = 0; i + 1 < scratch.symbols.size(); ++i) QueuePair(static_cast<int32_t>(i), scratch);
}

void Bpe::EncodeWord(absl::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (const auto whole = words_.find(word); whole != words_.end()) {
    ids.push_back(whole->second);
    return;
  }
  Load(word, scratch);
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), MergesLater);
    const Scratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();
    Scratch::Symbol& left = scratch.symbols[best.position];
    // Either neighbour may have merged elsewhere since this was queued.
    if (!left.alive || left.id != best.left || left.next < 0) continue;
    Scratch::Symbol& right = scratch.symbols[left.next];
    if (right.id != best.right) continue;
    right.alive = false;
    left.id = best.merged;
    left.next = right.next;
    if (left.next >= 0) scratch.symbols[left.next].previous = best.position;
    if (left.previous >= 0) QueuePair(left.previous, scratch);
    QueuePair(best.position, scratch);
  }
  for (int32_t i = scratch.symbols.empty() ? -1 : 0; i >= 0; i = scratch.symbols[i].next) {
    ids.push_back(scratch.symbols[i].id);
  }
}

}  // namespace ridgefill::tokenizer
