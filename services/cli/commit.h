// Which sources this program was built from.
#pragma once

namespace ridgefill::cli {

// "0.1.0-1a2b3c4d5e6f", "...-dirty" with uncommitted changes; without a clone the version alone.
const char* Commit();

}  // namespace ridgefill::cli
