// The held-out report of a map set as a table on stdout.
#pragma once

#include "engine/ridge/map_set.h"

namespace ridgefill::cli {

void PrintReport(const ridge::MapSetManifest& manifest);

}  // namespace ridgefill::cli
