# SPDX-License-Identifier: BSD-3-Clause
#
# cmake -DPROGRAM=gpu_check -DCHECK=... -DFOLDER=... -P checks.cmake

cmake_policy(VERSION 3.25)
set(ENV{CUDA_VISIBLE_DEVICES} "")  # as on a machine without a GPU

# run(expected_exit_code options...): `output` and `results` hold what the program said and wrote.
function(run expected)
  file(REMOVE_RECURSE "${FOLDER}")
  execute_process(COMMAND "${PROGRAM}" --out "${FOLDER}" ${ARGN} RESULT_VARIABLE code
                  OUTPUT_VARIABLE said ERROR_VARIABLE complained)
  if(NOT code STREQUAL expected)
    message(FATAL_ERROR "gpu_check ${ARGN} ended with ${code}, not ${expected}:\n"
                        "${said}${complained}")
  endif()
  file(READ "${FOLDER}/gpu_check.json" written)
  set(output "${said}" PARENT_SCOPE)
  set(results "${written}" PARENT_SCOPE)
endfunction()

if(CHECK STREQUAL says_that_nothing_was_checked)
  run(77)
  string(JSON why GET "${results}" why_nothing)
  string(JSON anything GET "${results}" anything_checked)
  if(anything OR NOT why MATCHES "^no CUDA device" OR NOT output MATCHES ": nothing was checked")
    message(FATAL_ERROR "it does not say why nothing was checked:\n${output}${results}")
  endif()

elseif(CHECK STREQUAL tries_its_checks_on_the_cpu)
  run(0 --dry-run)
endif()
