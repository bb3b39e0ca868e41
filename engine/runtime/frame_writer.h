// Builds the frames of one transfer and hands them to its sink: reads K, V and hidden rows off the device
// straight into payloads, coalesces layers up to the frame size, numbers, checksums and seals.
//
// Owned by the prefill engine's thread. Everything passed in must outlive the writer. Payloads are handed
// over once the device has filled them, so that layers go out while later ones compute.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/runtime/kv_frame.h"
#include "engine/runtime/kv_stream.h"
#include "kernels/api/backend.h"

namespace ridgefill::runtime {

// Tokens [token_begin, token_begin + token_count) of layers [layer_begin, layer_end).
struct KvRun {
  absl::Span<const int32_t> block_table;
  int64_t token_begin = 0, token_count = 0;
  int layer_begin = 0, layer_end = 0;
};

class FrameWriter {
 public:
  struct Target {
    kernels::Backend* backend = nullptr;
    kernels::Stream* stream = nullptr;
    const kernels::KvCache* cache = nullptr;
    KvSink* sink = nullptr;
    int64_t frame_bytes = 1 << 20;
  };
  explicit FrameWriter(const Target& target) : target_(target) {}

  // Announces the layers that AddLayer will be called for, each once, in order.
  void BeginKv(const KvRun& run) { run_ = run; }
  // The layer's K and V of the run are in the cache, or enqueued to be.
  absl::Status AddLayer(int layer);
  // Residual rows entering `layer`: f32 [positions, d] on the device; must stay as they are until Flush.
  absl::Status AddHidden(int layer, absl::Span<const int32_t> positions, const kernels::TensorView& rows);
  // [tokens], of the whole prompt.
  void AddScores(absl::Span<const float> scores);
  // Waits for the device and hands over every frame so far. After it nothing of the caller's is read any
  // more.
  absl::Status Flush();
  // Plan and Sealed. The caller finishes the sink.
  void Seal(PlanBody plan);

  int64_t frames() const { return static_cast<int64_t>(frames_); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Closed {
    KvFrame frame;
    std::unique_ptr<kernels::Event> filled;
  };
  absl::Status AddLayerInParts(int layer);
  absl::Status ReadKv(int layer, int64_t token_begin, int64_t token_count, absl::Span<char> to);
  void Close(KvFrame frame);
  void SendFilled();
  void Send(KvFrame frame);

  const Target target_;
  KvRun run_;
  KvFrame open_;               // its payload is sized for all layers that it will hold
  std::deque<Closed> closed_;  // in order, perhaps still being filled by the device
  uint64_t frames_ = 0;
  uint32_t digest_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace ridgefill::runtime
