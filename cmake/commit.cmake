# cmake -DSOURCE=DIR -DVERSION=1.2.3 -DOUT=FILE -P commit.cmake: FILE defines the name of the sources, the version and,
# in a clone, the commit: "0.1.0-1a2b3c4d5e6f", with "-dirty" when files have changed since.
execute_process(
  COMMAND git -C "${SOURCE}" describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(name "${VERSION}")
else()
  set(name "${VERSION}-${commit}")
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT [[
#include "services/cli/commit.h"

namespace ridgefill::cli {

const char* Commit() { return "@name@"; }

}  // namespace ridgefill::cli
]] @ONLY)
