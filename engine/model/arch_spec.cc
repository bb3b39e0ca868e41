#include "engine/model/arch_spec.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status.h"
#include "engine/formats/quote.h"

namespace ridgefill::model {

absl::StatusOr<const ArchSpec*> FindArch(absl::string_view name) {
  for (const ArchSpec* arch : AllArchs()) {
    if (arch->name == name) return arch;
  }
  const auto append_name = [](std::string* out, const ArchSpec* arch) { absl::StrAppend(out, arch->name); };
  return base::Error(absl::StatusCode::kUnimplemented, "UNSUPPORTED_ARCH",
                     absl::StrCat("architecture ", formats::Quote(name), " is not supported; this build has ",
                                  absl::StrJoin(AllArchs(), ", ", append_name)),
                     {{"arch", std::string(name)}});
}

}  // namespace ridgefill::model
