// The two ends of a transfer, as the engines see them. A transport (services/transport) implements both; it
// moves frames in order and never looks inside. Checksums, gaps and digests are the engines' business, the
// same for every transport.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/kv_frame.h"

namespace ridgefill::runtime {

// Prefill side of one transfer. Called by the prefill engine's thread; implementations are thread-safe
// against their transport's threads. The object is destroyed by the engine after Finish.
class KvSink {
 public:
  virtual ~KvSink() = default;
  // False while the transport's bounded buffer is full: the engine then leaves this request out of its next
  // step.
  virtual bool HasRoom() const = 0;
  // Never blocks. One chunk's frames may overshoot the bound of HasRoom.
  virtual void Send(KvFrame frame) = 0;
  // The last call: OK after Sealed, or why the transfer failed.
  virtual void Finish(absl::Status status) = 0;
  // The peer cancelled, its deadline passed or its connection broke.
  virtual bool Cancelled() const = 0;
  // `wake` is called (from any thread) when room appears or the peer cancels.
  virtual void SetWakeup(std::function<void()> wake) = 0;
};

// Decode side of one transfer. Thread-safe. Destroying it cancels the call at the peer.
class KvTransfer {
 public:
  virtual ~KvTransfer() = default;
  // The next frame that has arrived, nullopt if none has. The transport reads ahead a bounded number of
  // bytes.
  virtual std::optional<KvFrame> TryNext() = 0;
  // Set once the stream has ended and all its frames were taken.
  virtual std::optional<absl::Status> Ended() = 0;
  virtual void Cancel() = 0;
};

// A way to reach one prefill worker. Thread-safe.
class KvSource {
 public:
  virtual ~KvSource() = default;
  // Starts a call; errors come through KvTransfer::Ended. `wake` is called (from any thread) when a frame or
  // the end arrives.
  virtual std::unique_ptr<KvTransfer> Open(PrefillCall call, std::function<void()> wake) = 0;
};

// Finds the KvSource of a worker by the address that the router chose. Thread-safe.
class KvSourceDirectory {
 public:
  virtual ~KvSourceDirectory() = default;
  virtual absl::StatusOr<std::shared_ptr<KvSource>> Find(const std::string& address) = 0;
};

}  // namespace ridgefill::runtime
