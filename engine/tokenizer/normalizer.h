// Unicode normalisation form C. Thread-safe: a pure function.
//
// utf8proc has the character data. Its own whole-string call sorts combining marks by a quadratic exchange
// sort, so a megabyte of marks would take hours; decomposition and sorting are done here, in O(n log n), and
// composition there.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridgefill::tokenizer {

absl::StatusOr<std::string> NormalizeNfc(absl::string_view valid_utf8);

}  // namespace ridgefill::tokenizer
