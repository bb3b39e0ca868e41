#include "services/common/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/log.h"
#include "engine/base/status.h"
#include "services/common/process.h"

namespace ridgefill::common {
namespace {

// For answers on their way when the drain is done.
constexpr absl::Duration kLastWords = absl::Seconds(1);

class GrpcServer : public Server {
 public:
  GrpcServer(std::unique_ptr<grpc::Server> server, int port, std::vector<std::string> names)
      : server_(std::move(server)), port_(port), names_(std::move(names)) {
    names_.push_back("");
    SetServing(false);
  }
  ~GrpcServer() override { Shutdown(absl::Now()); }

  void SetServing(bool serving) override {
    serving_ = serving;
    for (const auto& name : names_) server_->GetHealthCheckService()->SetServingStatus(name, serving);
  }
  bool serving() const override { return serving_; }
  int port() const override { return port_; }

  std::shared_ptr<grpc::Channel> InProcessChannel() override {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    return server_->InProcessChannel(arguments);
  }

  void Shutdown(absl::Time deadline) override { server_->Shutdown(absl::ToChronoTime(deadline)); }

 private:
  std::unique_ptr<grpc::Server> server_;
  const int port_;
  std::vector<std::string> names_;
  std::atomic<bool> serving_ = false;
};

void SetUp(const ServerOptions& options, grpc::ServerBuilder& builder) {
  // Without this a second program on the same port would quietly take half of the first one's calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A peer that vanished without a word (host down, cable cut) is noticed, and its blocks are freed.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.SetMaxReceiveMessageSize(options.max_message_mb << 20);
  for (grpc::Service* service : options.services) builder.RegisterService(service);
}

}  // namespace

ServerOptions MakeServerOptions(const config::v1::ListenConfig& listen, std::vector<grpc::Service*> services,
                                std::vector<std::string> health_names) {
  return {listen.address(), listen.max_message_mb(), std::move(services), std::move(health_names)};
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetUp(options, builder);
  int port = 0;
  if (!options.address.empty()) {
    builder.AddListeningPort(options.address, grpc::InsecureServerCredentials(), &port);
  }
  auto server = builder.BuildAndStart();
  if (server == nullptr || (!options.address.empty() && port == 0)) {
    return base::Error(absl::StatusCode::kUnavailable, "ADDRESS_IN_USE",
                       absl::StrCat("cannot listen on ", options.address,
                                    ": is another program using it, and is it an address of this machine?"));
  }
  return std::make_unique<GrpcServer>(std::move(server), port, options.health_names);
}

void ServeUntilSignal(Server& server, absl::Duration drain_time,
                      const std::function<void(absl::Time)>& drain) {
  ShutdownSignal signal;  // caught from before the first request on
  server.SetServing(true);
  base::Log(base::Severity::kInfo, "serving", {{"port", int64_t{server.port()}}});
  const int number = signal.Wait();
  const absl::Time deadline = absl::Now() + drain_time;
  base::Log(base::Severity::kInfo, "draining", {{"signal", int64_t{number}}});
  server.SetServing(false);
  drain(deadline);
  // What was to finish has finished; a health Watch or a reflection stream never does.
  server.Shutdown(std::min(deadline, absl::Now() + kLastWords));
  base::Log(base::Severity::kInfo, "stopped", {});
}

}  // namespace ridgefill::common
