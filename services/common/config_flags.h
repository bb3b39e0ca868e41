// Command-line flags over a configuration message: what operators set most often has a flag, everything has a
// field in the file. A flag wins over the file.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ridgefill/config/v1/config.pb.h"

namespace CLI {
class App;
}

namespace ridgefill::common {

// Config: PrefillConfig, DecodeConfig, RouterConfig or ServeConfig. Must outlive the parsing of `app`.
template <typename Config>
class ConfigFlags {
 public:
  // Adds --config, --print_config and the flags of this program.
  explicit ConfigFlags(CLI::App& app);
  ConfigFlags(const ConfigFlags&) = delete;
  ConfigFlags& operator=(const ConfigFlags&) = delete;

  // After parsing: file, then flags, then defaults, then Validate.
  absl::StatusOr<Config> Load() const;
  bool print_config() const { return print_config_; }

 private:
  template <typename Value>
  void Add(const char* name, const char* type, const char* help,
           std::function<void(Config&, const Value&)> set);
  void AddCommon();
  void AddWorker();
  void AddOwn();

  CLI::App& app_;
  std::string group_;
  std::string path_;
  bool print_config_ = false;
  std::vector<std::function<void(Config&)>> setters_;
};

// All that a daemon's main() does with its arguments. Prints help, version, the configuration or the error
// itself; then `exit_code` is set and main returns it.
template <typename Config>
struct CommandLine {
  int exit_code = -1;  // -1: go on with `config`
  Config config;
};
template <typename Config>
CommandLine<Config> ParseCommandLine(int argc, char** argv, const char* description);

}  // namespace ridgefill::common
