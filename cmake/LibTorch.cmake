# SPDX-License-Identifier: BSD-3-Clause
#
# Provides the imported target refrain::libtorch, from the first of
#   1. a target `torch` that is here already, or a LibTorch named by CMAKE_PREFIX_PATH or Torch_DIR;
#   2. the `torch` package of the Python that CMake finds, if its version is supported;
#   3. a pinned wheel, fetched once into REFRAIN_LIBTORCH_CACHE, where REFRAIN_FETCH_LIBTORCH is on.
#
# This file is installed with the package: a consumer gets 1 and 2.

set(REFRAIN_LIBTORCH_VERSION
    "$ENV{REFRAIN_LIBTORCH_VERSION}"
    CACHE STRING "The LibTorch to use, 2.11.0 or 2.15.0; empty: any supported one that is here")

# After it either refrain::libtorch exists or REFRAIN_LIBTORCH_ERROR says in a sentence why not.
# REFRAIN_LIBTORCH_ROOT and REFRAIN_LIBTORCH_FOUND_VERSION stay empty for a target that was here.
macro(refrain_provide_libtorch)
  set(REFRAIN_LIBTORCH_ERROR "")
  set(REFRAIN_LIBTORCH_ROOT "")
  set(REFRAIN_LIBTORCH_FOUND_VERSION "")
  if(TARGET torch)
    refrain_adopt_torch_target()
  elseif(NOT TARGET refrain::libtorch)
    find_package(Python3 COMPONENTS Interpreter QUIET)
    refrain_find_libtorch()
    if(NOT REFRAIN_LIBTORCH_ERROR)
      message(STATUS "LibTorch ${REFRAIN_LIBTORCH_FOUND_VERSION} (${REFRAIN_LIBTORCH_FROM}): "
                     "${REFRAIN_LIBTORCH_ROOT}")
      refrain_make_libtorch_target()
    endif()
  endif()
endmacro()

function(refrain_find_libtorch)
  set(from named)
  refrain_named_libtorch(root)
  if(root)
    refrain_libtorch_version("${root}" version)
    refrain_libtorch_objection("${version}" error)
    if(error)
      set(error "The LibTorch in ${root} is ${version}, and ${error}.")
    endif()
  else()
    set(from "Python's")
    refrain_python_libtorch(root)
    if(root)
      refrain_libtorch_version("${root}" version)
      refrain_libtorch_objection("${version}" objection)
      if(objection)
        message(STATUS "Passing over Python's LibTorch ${version}: ${objection}")
        set(root "")
      endif()
    endif()
  endif()
  if(NOT root)
    set(from fetched)
    refrain_fetched_libtorch(root version error)
  endif()
  set(REFRAIN_LIBTORCH_ERROR "${error}" PARENT_SCOPE)
  set(REFRAIN_LIBTORCH_ROOT "${root}" PARENT_SCOPE)
  set(REFRAIN_LIBTORCH_FOUND_VERSION "${version}" PARENT_SCOPE)
  set(REFRAIN_LIBTORCH_FROM "${from}" PARENT_SCOPE)
endfunction()

# What the user names.
function(refrain_named_libtorch root)
  set(${root} "" PARENT_SCOPE)
  string(REPLACE ":" ";" from_environment "$ENV{CMAKE_PREFIX_PATH}")
  foreach(place IN LISTS Torch_DIR Torch_ROOT CMAKE_PREFIX_PATH from_environment)
    foreach(suffix "" /share/cmake/Torch)
      if(EXISTS "${place}${suffix}/TorchConfig.cmake")
        get_filename_component(found "${place}${suffix}/../../.." ABSOLUTE)
        set(${root} "${found}" PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()
endfunction()

# What Python has, found without the seconds that importing it would take.
function(refrain_python_libtorch root)
  set(${root} "" PARENT_SCOPE)
  if(Python3_Interpreter_FOUND)
    execute_process(
      COMMAND "${Python3_EXECUTABLE}" -c
              "from importlib.util import find_spec as f; print(*f('torch').submodule_search_locations)"
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(found AND EXISTS "${found}/share/cmake/Torch/TorchConfig.cmake")
      set(${root} "${found}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

# A wheel of our own. The stamp tells a complete one from what an interrupted fetch left.
function(refrain_fetched_libtorch root version error)
  set(${error} "" PARENT_SCOPE)
  set(wanted "${REFRAIN_LIBTORCH_VERSION}")
  if(NOT wanted)
    set(wanted 2.11.0)
  endif()
  set(${version} ${wanted} PARENT_SCOPE)
  set(home "${REFRAIN_LIBTORCH_CACHE}/${wanted}")
  if(NOT wanted MATCHES "^(2\\.11\\.0|2\\.15\\.0)$")
    set(${error} "REFRAIN_LIBTORCH_VERSION is ${wanted}; it can be 2.11.0 or 2.15.0." PARENT_SCOPE)
    return()
  elseif(NOT REFRAIN_FETCH_LIBTORCH)
    set(${error} "No supported LibTorch (2.11.0 to 2.15) was found; name one in CMAKE_PREFIX_PATH."
        PARENT_SCOPE)
    return()
  elseif(NOT EXISTS "${home}/complete")
    refrain_fetch_wheel("${home}" ${wanted} failed)
    if(failed)
      set(${error} "${failed}" PARENT_SCOPE)
      return()
    endif()
  endif()
  file(GLOB found "${home}/lib/python3*/site-packages/torch")
  set(${root} "${found}" PARENT_SCOPE)
endfunction()

function(refrain_fetch_wheel home version error)
  set(${error} "" PARENT_SCOPE)
  if(NOT Python3_Interpreter_FOUND)
    set(${error} "There is no LibTorch, and no Python 3 to fetch one with; install Python 3, or name a \
LibTorch in CMAKE_PREFIX_PATH." PARENT_SCOPE)
    return()
  endif()
  file(LOCK "${home}.lock" GUARD FUNCTION TIMEOUT 900)
  if(EXISTS "${home}/complete")
    return()
  endif()
  message(STATUS "Fetching LibTorch ${version}, once, into ${home}")
  file(REMOVE_RECURSE "${home}")
  execute_process(COMMAND "${Python3_EXECUTABLE}" -m venv "${home}" RESULT_VARIABLE failed
                  OUTPUT_QUIET ERROR_QUIET)
  if(failed)
    set(${error} "${Python3_EXECUTABLE} cannot make a virtual environment; install its venv module \
(Debian and Ubuntu: python3-venv)." PARENT_SCOPE)
    return()
  endif()
  # libtorch_cpu needs these two at load time, even where there is no GPU; nothing else.
  set(cuda nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
  execute_process(
    COMMAND "${home}/bin/python" -m pip install --quiet --no-deps --no-compile
            --disable-pip-version-check torch==${version} ${cuda}
    RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(failed)
    string(STRIP "${said}" said)
    set(${error} "LibTorch ${version} could not be fetched; check the network, or name a LibTorch in \
CMAKE_PREFIX_PATH. pip says: ${said}" PARENT_SCOPE)
    return()
  endif()
  file(TOUCH "${home}/complete")
endfunction()

function(refrain_libtorch_version root version)
  include("${root}/share/cmake/Torch/TorchConfigVersion.cmake" OPTIONAL)
  set(${version} "${PACKAGE_VERSION}" PARENT_SCOPE)
endfunction()

# Says why a LibTorch of this version cannot serve, or leaves `objection` empty.
function(refrain_libtorch_objection version objection)
  set(${objection} "" PARENT_SCOPE)
  if(version VERSION_LESS 2.11.0 OR version VERSION_GREATER_EQUAL 2.16.0)
    set(${objection} "Refrain supports 2.11.0 to 2.15" PARENT_SCOPE)
  elseif(REFRAIN_LIBTORCH_VERSION AND NOT version VERSION_EQUAL REFRAIN_LIBTORCH_VERSION)
    set(${objection} "REFRAIN_LIBTORCH_VERSION asks for ${REFRAIN_LIBTORCH_VERSION}" PARENT_SCOPE)
  endif()
endfunction()

# Whether libtorch_cuda is there with all it needs: a wheel without its CUDA packages serves the CPU.
function(refrain_libtorch_cuda root usable)
  set(${usable} NO PARENT_SCOPE)
  find_program(REFRAIN_LDD ldd)
  mark_as_advanced(REFRAIN_LDD)
  set(library "${root}/lib/libtorch_cuda${CMAKE_SHARED_LIBRARY_SUFFIX}")
  if(EXISTS "${library}" AND REFRAIN_LDD)
    execute_process(COMMAND "${REFRAIN_LDD}" "${library}" OUTPUT_VARIABLE needs ERROR_QUIET)
    if(NOT needs MATCHES "not found")
      set(${usable} YES PARENT_SCOPE)
    endif()
  endif()
endfunction()

# A LibTorch that the user names comes through its own package file, unless that would ask for a CUDA
# Toolkit that is not here: the libraries do not need one.
macro(refrain_make_libtorch_target)
  refrain_libtorch_cuda("${REFRAIN_LIBTORCH_ROOT}" REFRAIN_LIBTORCH_CUDA)
  set(_refrain_own YES)
  if(REFRAIN_LIBTORCH_FROM STREQUAL "named")
    if(REFRAIN_LIBTORCH_CUDA)
      find_package(CUDAToolkit QUIET)
    endif()
    if(CUDAToolkit_FOUND OR NOT EXISTS
                            "${REFRAIN_LIBTORCH_ROOT}/lib/libtorch_cuda${CMAKE_SHARED_LIBRARY_SUFFIX}")
      set(_refrain_own NO)
    endif()
  endif()
  if(_refrain_own)
    refrain_import_libtorch("${REFRAIN_LIBTORCH_ROOT}" ${REFRAIN_LIBTORCH_CUDA})
  else()
    set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
    find_package(Torch REQUIRED CONFIG PATHS "${REFRAIN_LIBTORCH_ROOT}/share/cmake/Torch"
                 NO_DEFAULT_PATH)
    unset(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL)
    refrain_adopt_torch_target()
  endif()
endmacro()

function(refrain_adopt_torch_target)
  add_library(refrain::libtorch INTERFACE IMPORTED GLOBAL)
  target_link_libraries(refrain::libtorch INTERFACE torch)
  get_target_property(imported torch IMPORTED)
  if(NOT imported)  # Imported targets' headers are system headers already.
    target_include_directories(refrain::libtorch SYSTEM INTERFACE
                               $<TARGET_PROPERTY:torch,INTERFACE_INCLUDE_DIRECTORIES>)
  endif()
endfunction()

function(refrain_import_libtorch root with_cuda)
  add_library(refrain::libtorch INTERFACE IMPORTED GLOBAL)
  set(names torch_cpu c10)
  if(with_cuda)
    list(APPEND names torch_cuda c10_cuda)
    if(UNIX AND NOT APPLE)  # Nobody calls into libtorch_cuda; it registers itself when loaded.
      target_link_options(refrain::libtorch INTERFACE -Wl,--no-as-needed)
    endif()
  endif()
  foreach(name IN LISTS names)
    add_library(refrain::${name} SHARED IMPORTED GLOBAL)
    set_target_properties(
      refrain::${name}
      PROPERTIES IMPORTED_LOCATION
                 "${root}/lib/${CMAKE_SHARED_LIBRARY_PREFIX}${name}${CMAKE_SHARED_LIBRARY_SUFFIX}")
    target_link_libraries(refrain::libtorch INTERFACE refrain::${name})
  endforeach()
  target_include_directories(refrain::libtorch INTERFACE
                             "${root}/include" "${root}/include/torch/csrc/api/include")
endfunction()
