# SPDX-License-Identifier: BSD-3-Clause
#
# refrain_warnings: linked by this project's own programs only, never by who uses the library.

option(REFRAIN_WARNINGS_AS_ERRORS "Warnings stop the build of Refrain's own programs" OFF)

add_library(refrain_warnings INTERFACE)
target_compile_options(
  refrain_warnings
  INTERFACE -Wall
            -Wextra
            -Wpedantic
            -Wshadow
            -Wnon-virtual-dtor
            -Woverloaded-virtual
            -Wunused
            -Wno-unknown-pragmas
            $<$<CXX_COMPILER_ID:GNU>:-Winvalid-pch>
            $<$<BOOL:${REFRAIN_WARNINGS_AS_ERRORS}>:-Werror>)
