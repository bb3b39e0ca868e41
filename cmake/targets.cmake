# One static library per folder, named after it: engine/base is ridgefill_engine_base. Include paths start at the root.
include(CMakeParseArguments)

# Builds what `cmake --install` installs.
add_custom_target(programs)

# Builds every test with the label `threaded`: all that the `tsan` preset runs.
add_custom_target(threaded_tests)

# Goes into every program of the `tsan` preset; the heads of tests/support/tsan_*.cc say why.
if(RIDGEFILL_SANITIZE MATCHES "thread")
  set(RIDGEFILL_TSAN_OBJECTS ridgefill_tsan)
endif()
set(RIDGEFILL_SANITIZER_OPTIONS
    UBSAN_OPTIONS=print_stacktrace=1
    "TSAN_OPTIONS=ignore_noninstrumented_modules=1:suppressions=${CMAKE_SOURCE_DIR}/tests/support/tsan.supp")

# ridgefill_library(SOURCES a.cc ... [DEPS target ...] [PRIVATE_DEPS target ...]): the library of the current folder.
function(ridgefill_library)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  file(RELATIVE_PATH folder "${CMAKE_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  string(REPLACE "/" "_" name "${folder}")
  set(target ridgefill_${name})
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE ridgefill_options ${ARG_PRIVATE_DEPS})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${target} ${scope} ${ARG_DEPS} Threads::Threads)
endfunction()

# ridgefill_uses_eigen(TARGET SOURCE...): Eigen knows only the instructions that it is compiled for. The CPU backend asks
# for these two at the least, and all that use Eigen must agree on them: its templates are shared.
function(ridgefill_uses_eigen target)
  target_link_libraries(${target} PRIVATE Eigen3::Eigen)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma")
  endif()
endfunction()

# ridgefill_program(NAME ridgefill-x SOURCES main.cc DEPS ...): a program under build/<preset>/bin; those of services/ are installed.
function(ridgefill_program)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_include_directories(${ARG_NAME} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${ARG_NAME} PRIVATE ridgefill_options ${ARG_DEPS} ${RIDGEFILL_TSAN_OBJECTS})
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${CMAKE_SOURCE_DIR}/services/")
    install(TARGETS ${ARG_NAME} RUNTIME DESTINATION bin)
    add_dependencies(programs ${ARG_NAME})
  endif()
endfunction()

# ridgefill_test(NAME x_test SOURCES x_test.cc DEPS ... [LABELS threaded] [TIMEOUT s]): a GoogleTest program, one CTest entry.
# Label `threaded` puts a test into the ThreadSanitizer run as well. Tests run in the root of the repository
# (tests/support/main.cc), so RIDGEFILL_SOURCE_DIR is "." and object files are the same in every clone.
function(ridgefill_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_include_directories(${ARG_NAME} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_compile_definitions(${ARG_NAME} PRIVATE RIDGEFILL_SOURCE_DIR=".")
  target_link_libraries(${ARG_NAME} PRIVATE ridgefill_options ${ARG_DEPS} ridgefill_test_main ${RIDGEFILL_TSAN_OBJECTS})
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${ARG_NAME} PROPERTIES TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${RIDGEFILL_SANITIZER_OPTIONS}")
  if(ARG_LABELS)
    set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}")
  endif()
  if("threaded" IN_LIST ARG_LABELS)
    add_dependencies(threaded_tests ${ARG_NAME})
  endif()
endfunction()

# ridgefill_fuzz(NAME x_fuzz SOURCES x_fuzz.cc DEPS ...): a libFuzzer program, built by the `fuzz` preset only.
function(ridgefill_fuzz)
  if(NOT RIDGEFILL_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_include_directories(${ARG_NAME} PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} -fsanitize=fuzzer)
endfunction()
