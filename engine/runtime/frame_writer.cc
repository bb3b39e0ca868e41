#include "engine/runtime/frame_writer.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/crc32c.h"
#include "engine/base/status.h"
#include "engine/runtime/host_bytes.h"
#include "engine/runtime/transfer_checker.h"

namespace ridgefill::runtime {

absl::Status FrameWriter::AddLayer(int layer) {
  const int64_t layer_bytes = run_.token_count * target_.cache->spec().token_bytes();
  if (layer_bytes > target_.frame_bytes) return AddLayerInParts(layer);
  if (open_.payload.empty()) {
    const int64_t layers = std::clamp<int64_t>(target_.frame_bytes / layer_bytes, 1, run_.layer_end - layer);
    open_.body = KvBody{layer, layer + static_cast<int>(layers), run_.token_begin, run_.token_count};
    open_.payload.resize(layers * layer_bytes);
  }
  const KvBody& body = std::get<KvBody>(open_.body);
  RF_CHECK(layer >= body.layer_begin && layer < body.layer_end);
  const absl::Span<char> payload(open_.payload.data(), open_.payload.size());
  RF_RETURN_IF_ERROR(ReadKv(layer, run_.token_begin, run_.token_count,
                            payload.subspan((layer - body.layer_begin) * layer_bytes, layer_bytes)));
  if (layer + 1 == body.layer_end) Close(std::exchange(open_, {}));
  SendFilled();
  return absl::OkStatus();
}

// A layer of this many tokens is larger than a frame: whole blocks of tokens, as many as fit.
absl::Status FrameWriter::AddLayerInParts(int layer) {
  const int64_t token_bytes = target_.cache->spec().token_bytes();
  const int64_t blocks = target_.frame_bytes / (token_bytes * kernels::kBlockTokens);
  const int64_t part = std::max<int64_t>(1, blocks) * kernels::kBlockTokens;
  for (int64_t done = 0; done < run_.token_count; done += part) {
    const int64_t count = std::min(part, run_.token_count - done);
    KvFrame frame;
    frame.body = KvBody{layer, layer + 1, run_.token_begin + done, count};
    frame.payload.resize(count * token_bytes);
    RF_RETURN_IF_ERROR(ReadKv(layer, run_.token_begin + done, count,
                              absl::Span<char>(frame.payload.data(), frame.payload.size())));
    Close(std::move(frame));
  }
  SendFilled();
  return absl::OkStatus();
}

absl::Status FrameWriter::AddHidden(int layer, absl::Span<const int32_t> positions,
                                    const kernels::TensorView& rows) {
  const int64_t row_bytes = rows.row_elements() * kernels::ByteSize(rows.dtype);
  const int64_t part = std::max<int64_t>(1, target_.frame_bytes / row_bytes);
  const int64_t total = static_cast<int64_t>(positions.size());
  for (int64_t done = 0; done < total; done += part) {
    const int64_t count = std::min(part, total - done);
    const absl::Span<const int32_t> these = positions.subspan(done, count);
    KvFrame frame;
    frame.body = HiddenBody{layer, std::vector<int32_t>(these.begin(), these.end())};
    frame.payload.resize(count * row_bytes);
    RF_RETURN_IF_ERROR(
        target_.backend->CopyToHost(*target_.stream, rows.Rows(done, count),
                                    absl::Span<char>(frame.payload.data(), frame.payload.size())));
    Close(std::move(frame));
  }
  SendFilled();
  return absl::OkStatus();
}

void FrameWriter::AddScores(absl::Span<const float> scores) {
  KvFrame frame{.body = ScoresBody{static_cast<int64_t>(scores.size())}};
  const absl::Span<const char> bytes = HostBytes(scores);
  frame.payload.assign(bytes.data(), bytes.size());
  Close(std::move(frame));
}

absl::Status FrameWriter::Flush() {
  RF_CHECK(open_.payload.empty());
  RF_RETURN_IF_ERROR(target_.backend->Synchronize(*target_.stream));
  for (Closed& closed : closed_) Send(std::move(closed.frame));
  closed_.clear();
  return absl::OkStatus();
}

void FrameWriter::Seal(PlanBody plan) {
  RF_CHECK(closed_.empty());
  const int64_t tokens = plan.plan.tokens;
  Send(KvFrame{.body = std::move(plan)});
  Send(KvFrame{.body = SealedBody{tokens, frames_, digest_}});
}

absl::Status FrameWriter::ReadKv(int layer, int64_t token_begin, int64_t token_count, absl::Span<char> to) {
  const kernels::KvSpan span{layer, run_.block_table, token_begin, token_count};
  return target_.backend->ReadKv(*target_.stream, *target_.cache, span, to);
}

void FrameWriter::Close(KvFrame frame) {
  closed_.push_back({std::move(frame), target_.backend->Record(*target_.stream)});
}

void FrameWriter::SendFilled() {
  while (!closed_.empty() && closed_.front().filled->Done()) {
    Send(std::move(closed_.front().frame));
    closed_.pop_front();
  }
}

void FrameWriter::Send(KvFrame frame) {
  frame.sequence = frames_++;
  frame.crc32c = base::Crc32c(frame.payload);
  digest_ = ExtendDigest(digest_, frame.crc32c);
  bytes_ += static_cast<int64_t>(frame.payload.size());
  target_.sink->Send(std::move(frame));
}

}  // namespace ridgefill::runtime
