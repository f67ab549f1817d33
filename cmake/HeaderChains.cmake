# SPDX-License-Identifier: BSD-3-Clause
#
# Every header must include what it needs. Compiling each alone reads LibTorch a hundred times; what
# follows shows the same with a third of that. A header that comes after headers which it includes
# anyway sees nothing that it would not see alone, so headers that include each other make a chain,
# and one translation unit checks a chain: the innermost first.

# Sets `refrain_reach_<header>` to all headers of Refrain that the header includes, however far away.
function(refrain_reach root header)
  if(DEFINED "refrain_reach_${header}")
    return()
  endif()
  set(reach "")
  file(STRINGS "${root}/${header}" lines REGEX "^#include <refrain/")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include <(.*)>.*" "\\1" included "${line}")
    refrain_reach("${root}" "${included}")
    list(APPEND reach "${included}" ${refrain_reach_${included}})
    set("refrain_reach_${included}" "${refrain_reach_${included}}" PARENT_SCOPE)
  endforeach()
  list(REMOVE_DUPLICATES reach)
  set("refrain_reach_${header}" "${reach}" PARENT_SCOPE)
endfunction()

# An object library of one translation unit a chain, built only when asked for.
function(refrain_add_header_chains target root headers)
  set(by_size "")
  set(sources "")
  foreach(header IN LISTS headers)
    refrain_reach("${root}" "${header}")
    list(LENGTH "refrain_reach_${header}" size)
    math(EXPR size "1000 + ${size}")
    list(APPEND by_size "${size} ${header}")
  endforeach()
  list(SORT by_size)

  # Each goes to the end of the chain whose last header it includes and is most alike.
  set(count 0)
  foreach(header IN LISTS by_size)
    string(REGEX REPLACE "^[0-9]+ " "" header "${header}")
    set(best "")
    foreach(chain RANGE ${count})
      if(chain LESS count AND last_${chain} IN_LIST "refrain_reach_${header}")
        list(LENGTH "refrain_reach_${last_${chain}}" size)
        if(best STREQUAL "" OR size GREATER best_size)
          set(best ${chain})
          set(best_size ${size})
        endif()
      endif()
    endforeach()
    if(best STREQUAL "")
      set(best ${count})
      math(EXPR count "${count} + 1")
    endif()
    set(last_${best} "${header}")
    # Twice, since a header must bear that as well.
    string(APPEND text_${best} "#include <${header}>\n#include <${header}>\n")
  endforeach()

  math(EXPR last "${count} - 1")
  foreach(chain RANGE ${last})
    set(source "${CMAKE_CURRENT_BINARY_DIR}/${target}/chain_${chain}.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "${text_${chain}}")
    list(APPEND sources "${source}")
  endforeach()
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(${target} PRIVATE refrain_program)
  set_target_properties(${target} PROPERTIES CXX_CLANG_TIDY "")
endfunction()
