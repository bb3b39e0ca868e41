// The parts of a gRPC call that pass through the services: deadline, trace context.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace grpc {
class ClientContext;
class ServerContextBase;
}  // namespace grpc

namespace ridgefill::common {

// InfiniteFuture when the client set none.
absl::Time DeadlineOf(const grpc::ServerContextBase& context);

// The W3C `traceparent` of the call; empty when there is none or it is malformed (then it is dropped, as the
// standard says).
std::string TraceParentOf(const grpc::ServerContextBase& context);
bool IsTraceParent(absl::string_view value);

// For a call on behalf of another one.
void PassOn(absl::Time deadline, const std::string& trace_parent, grpc::ClientContext& context);

}  // namespace ridgefill::common
