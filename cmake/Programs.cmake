# SPDX-License-Identifier: BSD-3-Clause
#
# How this project's own programs are built: warnings, one precompiled <torch/torch.h> shared by all,
# and a compiler cache where there is one.

include(cmake/Warnings.cmake)

set(REFRAIN_SANITIZE "" CACHE STRING "Sanitizers for Refrain's own programs, as -fsanitize= takes them")
option(REFRAIN_TIDY "Run clang-tidy over Refrain's own programs" OFF)

if(REFRAIN_TIDY)
  find_program(REFRAIN_CLANG_TIDY clang-tidy REQUIRED)
  set(CMAKE_CXX_CLANG_TIDY "${REFRAIN_CLANG_TIDY}" --quiet)
endif()

find_program(REFRAIN_CCACHE ccache)
if(REFRAIN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness is what ccache's manual asks for with precompiled headers; the base folder lets
  # builds in different folders share.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" "${REFRAIN_CCACHE}")
endif()

add_library(refrain_sanitizers INTERFACE)
if(REFRAIN_SANITIZE)
  set(flags -fsanitize=${REFRAIN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_compile_options(refrain_sanitizers INTERFACE "${flags}")
  target_link_options(refrain_sanitizers INTERFACE "${flags}")
endif()

add_library(refrain_program INTERFACE)
target_link_libraries(refrain_program INTERFACE refrain::refrain refrain_sanitizers
                                                refrain_warnings)
if(REFRAIN_CCACHE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(refrain_program INTERFACE -fpch-preprocess)
endif()
if(UNIX AND NOT APPLE)
  # A CUDA LibTorch's own needs are its own affair: some linkers pick the system's NCCL for it.
  target_link_options(refrain_program INTERFACE -Wl,--allow-shlib-undefined)
endif()

file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/precompiled.cpp" CONTENT "// Holds the header.\n")
add_library(refrain_precompiled OBJECT "${PROJECT_BINARY_DIR}/precompiled.cpp")
target_link_libraries(refrain_precompiled PRIVATE refrain_program)
target_precompile_headers(refrain_precompiled PRIVATE <torch/torch.h>)

# What the tests of label core run: `cmake --build --target core_programs`.
add_custom_target(core_programs)

# refrain_add_program(name sources... [LIBRARIES libraries...])
function(refrain_add_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES")
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE refrain_program ${arg_LIBRARIES})
  target_precompile_headers(${name} REUSE_FROM refrain_precompiled)
endfunction()
