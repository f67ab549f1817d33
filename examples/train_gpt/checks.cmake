# SPDX-License-Identifier: BSD-3-Clause
#
# cmake -DPROGRAM=train_gpt -DCHECK=... -DFOLDER=... -P checks.cmake: runs train_gpt at toy sizes.

cmake_policy(VERSION 3.25)
set(ENV{OMP_NUM_THREADS} 1)
set(ENV{REFRAIN_PYTHON} "")  # no pictures of toys
set(toy --layers 5 --width 32 --heads 2 --seq 32 --batch 2)
file(MAKE_DIRECTORY "${FOLDER}")

# train(expected_exit_code options...): `output` and `errors` hold what the program said.
function(train expected)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} WORKING_DIRECTORY "${FOLDER}" RESULT_VARIABLE code
                  OUTPUT_VARIABLE said ERROR_VARIABLE complained)
  if(NOT code STREQUAL expected)
    message(FATAL_ERROR "train_gpt ${ARGN} ended with ${code}, not ${expected}:\n"
                        "${said}${complained}")
  endif()
  set(output "${said}" PARENT_SCOPE)
  set(errors "${complained}" PARENT_SCOPE)
endfunction()

function(expect text pattern)
  if(NOT text MATCHES "${pattern}")
    message(FATAL_ERROR "expected \"${pattern}\" in:\n${text}")
  endif()
endfunction()

# The comparison itself ends with an error when a gradient differs.
macro(compare)
  train(0 ${toy} --steps 2 ${ARGN} --policy all one_in:2 every:2 segments:3 sqrt first:2 binary)
  expect("${output}" "binary +[0-9.]+ [KM]iB")
endmacro()

if(CHECK STREQUAL equal_gradients)
  compare(--accumulate 2)
  file(READ "${FOLDER}/train_gpt.json" results)
  string(JSON policies LENGTH "${results}" policies)
  expect("${policies}" "^8$")
  string(JSON samples LENGTH "${results}" policies 1 live_bytes)
  expect("${samples}" "^[0-9][0-9][0-9]+$")

elseif(CHECK STREQUAL equal_gradients_bf16)
  compare(--autocast bf16)

elseif(CHECK STREQUAL equal_gradients_function_route)
  compare(--route function)

elseif(CHECK STREQUAL keeps_its_budget)
  # More steps than one, for the second finds what the optimizer has made.
  compare(--seq 64 --batch 4 --policy fit:0.7 fit:0.8)
  expect("${output}" "fit:0.8: peak predicted before training [0-9.]+ [KM]iB, measured")
  file(READ "${FOLDER}/train_gpt.json" results)
  foreach(row IN ITEMS 1 2)
    string(JSON policy GET "${results}" policies ${row} policy)
    string(JSON predicted GET "${results}" policies ${row} predicted_peak_bytes)
    string(JSON measured GET "${results}" policies ${row} peak_bytes)
    math(EXPR spare "${predicted} - ${measured}")
    if(spare LESS 0 OR spare GREATER 1024)
      message(FATAL_ERROR "${policy}: predicted ${predicted} bytes, measured ${measured}")
    endif()
  endforeach()
  train(0 ${toy} --policy fit:0.8 --steps 2)
  expect("${output}" "peak predicted [0-9.]+ [KM]iB, peak [0-9.]+ [KM]iB")
  train(1 ${toy} --policy budget:1MiB)
  expect("${errors}" "no plan fits 1.00 MiB: the least reachable peak is")

elseif(CHECK STREQUAL goes_on_exactly)
  train(0 ${toy} --policy every:2 --steps 6)
  string(REGEX MATCH "weights [0-9a-f]+" straight "${output}")
  train(0 ${toy} --policy every:2 --steps 2 --save half.pt)
  train(0 ${toy} --policy all --steps 6 --resume half.pt)
  expect("${output}" "${straight}")
  train(2 ${toy} --steps 2 --resume half.pt)
  expect("${errors}" "has 2 steps behind it")
  train(2 ${toy} --width 64 --steps 6 --resume half.pt)
  expect("${errors}" "was saved with width 32, not 64")

elseif(CHECK STREQUAL lints)
  # So small a model has its peak in its head: regions near it only cost.
  train(1 ${toy} --lint --policy all)
  expect("${output}" "warning: `layers[^`]*` only costs")
  train(0 ${toy} --lint --policy every:2)

elseif(CHECK STREQUAL records_a_step)
  train(0 ${toy} --steps 2 --policy every:2 --ledger step.json)
  expect("${output}" "at its peak on cpu")
  file(READ "${FOLDER}/step.json" ledger)
  string(JSON regions LENGTH "${ledger}" ledger calls)
  expect("${regions}" "^2$")
  string(JSON peak GET "${ledger}" peak live)
  expect("${peak}" "^[0-9]+$")
  file(READ "${FOLDER}/step.trace.json" trace)
  string(JSON events LENGTH "${trace}" traceEvents)
  expect("${events}" "^[0-9][0-9]+$")

elseif(CHECK STREQUAL moves_to_tiers)
  train(0 ${toy} --steps 2 --seq 64 --policy all every:2 offload --tier "disk:${FOLDER}")
  train(0 ${toy} --steps 2 --seq 64 --policy offload --tier "disk:${FOLDER}" --ledger moved.json)
  expect("${output}" "moved [0-9.]+ [KM]iB to disk")
  file(READ "${FOLDER}/moved.json" ledger)
  string(JSON moved LENGTH "${ledger}" ledger moved)
  expect("${moved}" "^[1-9][0-9]+$")
  train(0 ${toy} --steps 2 --policy offload --tier host)
  train(0 ${toy} --steps 2 --seq 64 --policy all --tier quantized:8)

elseif(CHECK STREQUAL bad_options)
  train(2 --policy budget:much)
  expect("${errors}" "after the colon goes an amount, as in 200MiB")
  train(2 --policy fit:2)
  expect("${errors}" "after the colon goes a share from 0 to 1")
  foreach(bad "--policy;some" "--policy;every" "--policy;every:0" "--policy;segments:99"
              "--layers;0" "--layers;many" "--heads;7" "--device;abacus" "--device;xla"
              "--autocast;fp8" "--route;scenic" "--tier;moon" "--tier;disk:/no/such/folder"
              "--policy;offload" "--policy;all;none;--tier;quantized:8" "--data;nowhere" "--seq;100000000" "--lr;-1"
              "--dropout;1" "--steps" "--unheard_of" "--resume;nothing" "--save;no/such/folder/x"
              "--policy;all;none;--save;x" "--policy;all;none;--lint" "--ledger;no/such/x")
    train(2 ${bad})
    expect("${errors}" "^train_gpt: [^\n]+\\.\n$")
  endforeach()

else()
  message(FATAL_ERROR "no check is called ${CHECK}")
endif()
