// A client of the public API, for commands: a server at an address, or the three services in this process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ridgefill/v1/generation.pb.h"
#include "services/cli/command.h"
#include "services/cli/trio.h"

namespace ridgefill::cli {

class Client {
 public:
  // `target` is host:port; empty: loads `flags.model` into this process.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& target, const ModelFlags& flags,
                                                         const std::string& home);
  virtual ~Client() = default;

  // Calls `on_message` for each message, in order. Waits for the end.
  virtual absl::Status Generate(const v1::GenerateRequest& request,
                                const std::function<void(const v1::GenerateResponse&)>& on_message) = 0;
  virtual absl::StatusOr<v1::ModelInfo> Model() = 0;
  virtual absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& text) = 0;
  virtual const Trio* trio() const = 0;  // null for a server elsewhere
};

// "attention", "probe", ...: a selector as flags name it.
absl::StatusOr<v1::Selector> ParseSelector(const std::string& name);

}  // namespace ridgefill::cli
