// Which sources this program was built from.
#pragma once

namespace ridgefill::cli {

// "0.1.0-1a2b3c4d5e6f"; with uncommitted changes "...-dirty-" and 12 digits of a sha256 of the sources,
// without a clone the version and those.
const char* Commit();

}  // namespace ridgefill::cli
