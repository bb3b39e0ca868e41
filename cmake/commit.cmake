# cmake -DSOURCE=DIR -DVERSION=1.2.3 -DOUT=FILE -P commit.cmake: FILE defines the name of the sources, the version and,
# in a clone, the commit: "0.1.0-1a2b3c4d5e6f". When files have changed since ("-dirty"), or without a clone, 12 digits of
# a sha256 over the sources follow: what one build measured must not be taken for another's.
execute_process(
  COMMAND git -C "${SOURCE}" describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(name "${VERSION}")
else()
  set(name "${VERSION}-${commit}")
endif()
if(failed OR commit MATCHES "-dirty$")
  file(GLOB_RECURSE files RELATIVE "${SOURCE}" "${SOURCE}/engine/*" "${SOURCE}/kernels/*" "${SOURCE}/services/*"
    "${SOURCE}/proto/*" "${SOURCE}/cmake/*" "${SOURCE}/CMakeLists.txt")
  set(digests "")
  foreach(path ${files})
    file(SHA256 "${SOURCE}/${path}" digest)
    string(APPEND digests "${path} ${digest}\n")
  endforeach()
  string(SHA256 digest "${digests}")
  string(SUBSTRING "${digest}" 0 12 digest)
  string(APPEND name "-${digest}")
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT [[
#include "services/cli/commit.h"

namespace ridgefill::cli {

const char* Commit() { return "@name@"; }

}  // namespace ridgefill::cli
]] @ONLY)
