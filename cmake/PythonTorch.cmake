# SPDX-License-Identifier: BSD-3-Clause
#
# refrain_provide_python_torch(python): a command that runs Python with the `torch` package of this
# build's own LibTorch, or nothing where that LibTorch is no Python package.
#
# A fetched wheel comes without its dependencies. Those in Python are small and are installed beside
# it. Those for CUDA are gigabytes that no CPU program calls; the loader only wants to see their
# names, so what the system lacks gets an empty library, and functions are bound when first called.
# One of them, nvshmem, holds a variable that is wanted at once, and is small enough to install.

function(refrain_provide_python_torch python)
  set(${python} "" PARENT_SCOPE)
  if(REFRAIN_LIBTORCH_FROM STREQUAL "fetched")
    set(home "${REFRAIN_LIBTORCH_CACHE}/${REFRAIN_LIBTORCH_FOUND_VERSION}")
    set(candidate "${home}/bin/python-torch")
    if(NOT EXISTS "${candidate}")
      refrain_complete_wheel("${home}" "${candidate}")
    endif()
  else()
    set(candidate "${Python3_EXECUTABLE}")
  endif()
  execute_process(COMMAND "${candidate}" -c "import torch; print(torch.__file__)"
                  OUTPUT_VARIABLE found ERROR_VARIABLE complaint RESULT_VARIABLE failed)
  if(NOT failed AND found MATCHES "^${REFRAIN_LIBTORCH_ROOT}/")
    set(${python} "${candidate}" PARENT_SCOPE)
  else()
    message(STATUS "No Python with this LibTorch: what needs it is left out. ${complaint}")
  endif()
endfunction()

function(refrain_complete_wheel home launcher)
  message(STATUS "Fetching what torch needs in Python, once, into ${home}")
  cmake_path(GET REFRAIN_LIBTORCH_ROOT PARENT_PATH packages)
  file(STRINGS "${packages}/torch-${REFRAIN_LIBTORCH_FOUND_VERSION}.dist-info/METADATA" nvshmem
       REGEX "^Requires-Dist: nvidia-nvshmem")
  string(REGEX MATCH "nvidia-nvshmem-cu[0-9]+==[0-9.]+" nvshmem "${nvshmem}")
  execute_process(
    COMMAND "${home}/bin/python" -m pip install --quiet --disable-pip-version-check ${nvshmem}
            filelock typing-extensions sympy networkx jinja2 fsspec numpy
    RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(failed)
    message(STATUS "pip says: ${said}")
    return()
  endif()
  refrain_stand_in_for_cuda("${REFRAIN_LIBTORCH_ROOT}/lib" "${home}/stand-ins")
  file(WRITE "${launcher}" "#!/bin/sh\n"
       "export LD_LIBRARY_PATH=\"${home}/stand-ins\${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\"\n"
       "exec \"${home}/bin/python\" \"$@\"\n")
  file(WRITE "${packages}/bind_when_called.pth" "import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n")
  file(CHMOD "${launcher}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
                                       WORLD_READ WORLD_EXECUTE)
endfunction()

function(refrain_stand_in_for_cuda libraries folder)
  file(MAKE_DIRECTORY "${folder}")
  file(GLOB files "${libraries}/*.so")
  foreach(file IN LISTS files)
    execute_process(COMMAND ldd "${file}" OUTPUT_VARIABLE needs ERROR_QUIET)
    string(REGEX MATCHALL "lib[^ \n]+ => not found" absent "${needs}")
    foreach(line IN LISTS absent)
      string(REGEX REPLACE " .*" "" name "${line}")
      if(NOT EXISTS "${folder}/${name}")
        execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -shared -x c++ /dev/null
                                "-Wl,-soname,${name}" -o "${folder}/${name}")
      endif()
    endforeach()
  endforeach()
endfunction()
