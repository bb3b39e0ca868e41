// A chat template's text as a list of canonical lines, so that templates which differ only in white space,
// quotes or how they join strings read the same. It evaluates nothing. Thread-safe: pure functions.
//
// Lines: `text ...` (literal output, neighbours merged), `print <expression>`, `for ...`, `endfor`, `if ...`,
// `elif ...`, `else`, `endif`, `set ...`. In expressions tokens stand one space apart, x['name'] is x.name,
// and strings are in single quotes with their escapes resolved.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridgefill::tokenizer {

// White space is trimmed as Hugging Face sets Jinja up (trim_blocks, lstrip_blocks). INVALID_ARGUMENT for
// what cannot be read: an unclosed tag or string, unbalanced blocks. `known`: 1 where a condition (canonical)
// always holds, 0 where it never does, -1 where it depends; branches are cut accordingly.
absl::StatusOr<std::vector<std::string>> OutlineJinja(absl::string_view jinja,
                                                      absl::FunctionRef<int(absl::string_view)> known);

}  // namespace ridgefill::tokenizer
