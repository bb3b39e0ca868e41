// Names out of untrusted files, made fit for an error message: quoted, escaped to printable ASCII, clipped.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace ridgefill::formats {

std::string Quote(absl::string_view untrusted);

}  // namespace ridgefill::formats
