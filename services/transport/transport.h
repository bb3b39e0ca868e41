// How KV frames get from prefill to decode workers. A transport is one file that defines one Transport; CMake
// lists the files, so that nothing else names them.
//
// A transport moves frames in order and never looks inside; it reads ahead a bounded number of bytes, and the
// life of a call is the life of its transfer: cancelling either end frees the other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/runtime/kv_stream.h"
#include "engine/runtime/prefill_engine.h"

namespace ridgefill::transport {

struct Capabilities {
  bool crosses_processes = false;
  bool crosses_machines = false;
  bool device_memory = false;  // frames go from device to device without passing through host memory
};

struct Options {
  int64_t receive_buffer_bytes = 32 << 20;         // frames of one transfer that are read ahead
  int max_message_mb = 64;                         // largest frame taken
  runtime::PrefillEngine* local_engine = nullptr;  // for transports inside one process; borrowed
};

struct Transport {
  absl::string_view name;
  Capabilities capabilities;
  // Addresses are what the router calls the prefill worker by.
  absl::StatusOr<std::unique_ptr<runtime::KvSourceDirectory>> (*connect)(const Options& options);
};

// All transports of this build.
absl::Span<const Transport* const> AllTransports();
// INVALID_ARGUMENT naming the transport and those there are.
absl::StatusOr<const Transport*> FindTransport(absl::string_view name);

}  // namespace ridgefill::transport
