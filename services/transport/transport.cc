#include "services/transport/transport.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status.h"

namespace ridgefill::transport {

absl::StatusOr<const Transport*> FindTransport(absl::string_view name) {
  std::string names;
  for (const Transport* transport : AllTransports()) {
    if (transport->name == name) return transport;
    absl::StrAppend(&names, names.empty() ? "" : ", ", transport->name);
  }
  return base::Error(absl::StatusCode::kInvalidArgument, "TRANSPORT_UNKNOWN",
                     absl::StrCat("no transport \"", name, "\"; allowed: ", names));
}

}  // namespace ridgefill::transport
