// Channels to other programs of the project.
#pragma once

#include <memory>
#include <string>

namespace grpc {
class Channel;
}

namespace ridgefill::common {

// Lazy, reconnects by itself within a second; keepalive notices a peer that vanished without a word. Does not
// go through HTTP proxies: workers are neighbours.
std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address, int max_message_mb);

}  // namespace ridgefill::common
