#include "services/common/channel.h"

#include <grpcpp/grpcpp.h>

namespace ridgefill::common {

std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address, int max_message_mb) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(max_message_mb << 20);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  // In spite of its name this is how long one attempt may take: a busy peer answers late.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A connection of its own for each channel: one peer's large frames do not queue behind another use.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace ridgefill::common
