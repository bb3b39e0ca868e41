# Language level, warnings, sanitizers and the compiler cache, for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# Assertions stay on in `dev`; a release drops only assert(), never RF_CHECK.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
# Sanitizer builds run whole models: -O1 keeps them usable, line tables keep reports readable.
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1 -fno-omit-frame-pointer")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # A clone in another folder hits only with a base directory and without the directory hashed.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
endif()

add_library(ridgefill_options INTERFACE)
target_compile_options(ridgefill_options INTERFACE -Wall -Wextra -Wno-missing-field-initializers)
if(RIDGEFILL_WERROR)
  target_compile_options(ridgefill_options INTERFACE -Werror)
endif()
if(RIDGEFILL_SANITIZE)
  add_compile_options(-fsanitize=${RIDGEFILL_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${RIDGEFILL_SANITIZE})
endif()
if(RIDGEFILL_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
