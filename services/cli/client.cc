#include "services/cli/client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status.h"
#include "ridgefill/v1/generation.grpc.pb.h"
#include "services/common/channel.h"
#include "services/common/config.h"
#include "services/common/status.h"

namespace ridgefill::cli {
namespace {

constexpr int kMaxMessageMb = 64;

class GrpcClient : public Client {
 public:
  GrpcClient(std::unique_ptr<Trio> trio, const std::shared_ptr<grpc::Channel>& channel)
      : trio_(std::move(trio)), stub_(v1::GenerationService::NewStub(channel)) {}

  absl::Status Generate(const v1::GenerateRequest& request,
                        const std::function<void(const v1::GenerateResponse&)>& on_message) override {
    grpc::ClientContext context;
    auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse message;
    while (reader->Read(&message)) on_message(message);
    return common::FromGrpcStatus(reader->Finish());
  }

  absl::StatusOr<v1::ModelInfo> Model() override {
    grpc::ClientContext context;
    v1::ListModelsResponse response;
    RF_RETURN_IF_ERROR(common::FromGrpcStatus(stub_->ListModels(&context, {}, &response)));
    if (response.models().empty()) return absl::InternalError("the server lists no model");
    return response.models(0);
  }

  absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& text) override {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_text(text);
    v1::TokenizeResponse response;
    RF_RETURN_IF_ERROR(common::FromGrpcStatus(stub_->Tokenize(&context, request, &response)));
    return std::vector<int32_t>(response.ids().begin(), response.ids().end());
  }

  const Trio* trio() const override { return trio_.get(); }

 private:
  std::unique_ptr<Trio> trio_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& target, const ModelFlags& flags,
                                                        const std::string& home) {
  if (!target.empty()) {
    RF_RETURN_IF_ERROR(common::CheckAddress("--target", target));
    return std::make_unique<GrpcClient>(nullptr, common::ConnectTo(target, kMaxMessageMb));
  }
  if (flags.model.empty()) {
    return absl::InvalidArgumentError("either --target (a running server) or --model is required");
  }
  config::v1::ServeConfig config = flags.ToServeConfig();
  common::FillDefaults(config);
  RF_RETURN_IF_ERROR(common::Validate(config));
  RF_ASSIGN_OR_RETURN(auto trio, Trio::Create(config, home));
  const auto channel = trio->InProcessChannel();
  return std::make_unique<GrpcClient>(std::move(trio), channel);
}

absl::StatusOr<v1::Selector> ParseSelector(const std::string& name) {
  v1::Selector selector;
  if (v1::Selector_Parse("SELECTOR_" + absl::AsciiStrToUpper(name), &selector)) return selector;
  return absl::InvalidArgumentError(
      absl::StrCat("--selector must be attention, probe, random, rarity or none, got \"", name, "\""));
}

}  // namespace ridgefill::cli
