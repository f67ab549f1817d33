# SPDX-License-Identifier: BSD-3-Clause
#
# Configures, builds and runs tests/consumer/WAY against this build's LibTorch; for find_package,
# against an installation made for it. Each run starts from nothing.

set(work "${BUILD}/consumer/${WAY}")
file(REMOVE_RECURSE "${work}")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(failed)
    message(FATAL_ERROR "${ARGN}\n${said}")
  endif()
endfunction()

# Through the environment: a list among the arguments would fall apart.
set(ENV{CMAKE_PREFIX_PATH} "${TORCH}")
if(WAY STREQUAL "find_package")
  run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${work}/installed")
  set(ENV{CMAKE_PREFIX_PATH} "${work}/installed:${TORCH}")
endif()
run("${CMAKE_COMMAND}" -S "${SOURCE}/tests/consumer/${WAY}" -B "${work}/build" -G "${GENERATOR}"
    "-DCMAKE_CXX_COMPILER=${COMPILER}" -DREFRAIN_LIBTORCH_VERSION=)
run("${CMAKE_COMMAND}" --build "${work}/build")
run("${CMAKE_CTEST_COMMAND}" --test-dir "${work}/build" --output-on-failure --no-tests=error)
