// A transport inside one process for the tests of the engines: a bounded queue between a prefill engine and a
// decode engine, with a place to break things.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "engine/runtime/kv_stream.h"
#include "engine/runtime/prefill_engine.h"

namespace ridgefill::runtime {

// What a fault turns one frame into: nothing (a drop), itself changed, several.
using Fault = std::function<std::vector<KvFrame>(KvFrame frame)>;

struct DirectOptions {
  size_t max_frames = 8;                  // HasRoom below this many
  size_t stall_after = SIZE_MAX;          // no room any more once this many were sent
  Fault fault;                            // empty: faithful
  std::optional<absl::Status> early_end;  // instead of the sink's own end
};

class DirectSource : public KvSource {
 public:
  explicit DirectSource(PrefillEngine& engine, DirectOptions options = {})
      : engine_(engine), options_(std::move(options)) {}
  std::unique_ptr<KvTransfer> Open(PrefillCall call, std::function<void()> wake) override;

 private:
  PrefillEngine& engine_;
  const DirectOptions options_;
};

// The same source under every address.
class DirectDirectory : public KvSourceDirectory {
 public:
  explicit DirectDirectory(std::shared_ptr<KvSource> source) : source_(std::move(source)) {}
  absl::StatusOr<std::shared_ptr<KvSource>> Find(const std::string& address) override;

 private:
  std::shared_ptr<KvSource> source_;
};

}  // namespace ridgefill::runtime
