# SPDX-License-Identifier: BSD-3-Clause
#
# Programs that must not compile. The first line of NAME.cpp is "// expect: TEXT", which the compiler
# must say; NAME.ok.cpp is the nearest program that must compile, so that NAME.cpp fails for its
# reason alone. Included, it adds a test for each; as a script it runs one.

if(CMAKE_SCRIPT_MODE_FILE AND DEFINED TARGET)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${BUILD}" --target ${TARGET}
                  RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(EXPECT STREQUAL "")
    if(failed)
      message(FATAL_ERROR "must compile, and does not:\n${said}")
    endif()
  elseif(NOT failed)
    message(FATAL_ERROR "compiles, and must not")
  else()
    string(FIND "${said}" "${EXPECT}" position)
    if(position EQUAL -1)
      message(FATAL_ERROR "does not compile, but not for this reason: ${EXPECT}\n${said}")
    endif()
  endif()
  return()
endif()

function(refrain_add_compile_test name source expect)
  set(target compile_fail_${name})
  add_library(${target} OBJECT EXCLUDE_FROM_ALL "${source}")
  target_link_libraries(${target} PRIVATE refrain_program)
  target_precompile_headers(${target} REUSE_FROM refrain_precompiled)
  set_target_properties(${target} PROPERTIES CXX_CLANG_TIDY "" EXPORT_COMPILE_COMMANDS OFF)
  add_test(NAME compile_fail.${name}
           COMMAND "${CMAKE_COMMAND}" "-DBUILD=${PROJECT_BINARY_DIR}" -DTARGET=${target}
                   "-DEXPECT=${expect}" -P "${PROJECT_SOURCE_DIR}/cmake/CompileFail.cmake")
  # Only one build at a time may run in a build tree.
  set_tests_properties(compile_fail.${name} PROPERTIES LABELS package RESOURCE_LOCK build_tree)
endfunction()

function(refrain_add_compile_fail_tests folder)
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "\\.ok\\.cpp$")
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    set(twin "${folder}/${name}.ok.cpp")
    file(STRINGS "${source}" first LIMIT_COUNT 1)
    if(NOT first MATCHES "^// expect: (.+)$")
      message(FATAL_ERROR "The first line of ${source} must be '// expect: TEXT'.")
    elseif(NOT EXISTS "${twin}")
      message(FATAL_ERROR "${source} needs a twin that compiles, ${name}.ok.cpp.")
    endif()
    string(REGEX REPLACE "^// expect: " "" expect "${first}")
    refrain_add_compile_test(${name} "${source}" "${expect}")
    refrain_add_compile_test(${name}.ok "${twin}" "")
  endforeach()
endfunction()
