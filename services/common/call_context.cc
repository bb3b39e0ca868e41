#include "services/common/call_context.h"

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include "absl/strings/ascii.h"

namespace ridgefill::common {

absl::Time DeadlineOf(const grpc::ServerContextBase& context) {
  const auto deadline = context.deadline();
  // gRPC's "none" is the largest value of the system clock's type.
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

std::string TraceParentOf(const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("traceparent");
  if (found == metadata.end()) return "";
  const absl::string_view value(found->second.data(), found->second.size());
  return IsTraceParent(value) ? std::string(value) : "";
}

bool IsTraceParent(absl::string_view value) {
  // version "-" trace id "-" parent id "-" flags, in lower-case hex.
  if (value.size() != 55) return false;
  for (size_t i = 0; i < value.size(); ++i) {
    const bool dash = i == 2 || i == 35 || i == 52;
    const bool hex = absl::ascii_isdigit(value[i]) || (value[i] >= 'a' && value[i] <= 'f');
    if (dash ? value[i] != '-' : !hex) return false;
  }
  constexpr absl::string_view kZeros = "00000000000000000000000000000000";
  return value.substr(0, 2) != "ff" && value.substr(3, 32) != kZeros &&
         value.substr(36, 16) != kZeros.substr(0, 16);
}

void PassOn(absl::Time deadline, const std::string& trace_parent, grpc::ClientContext& context) {
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
  if (!trace_parent.empty()) context.AddMetadata("traceparent", trace_parent);
}

}  // namespace ridgefill::common
