# SPDX-License-Identifier: BSD-3-Clause
#
# cmake -DPROGRAM=refrain-plan -DFOLDER=... -P checks.cmake: what a user of the program sees.

cmake_policy(VERSION 3.25)
file(MAKE_DIRECTORY "${FOLDER}")

# plan(expected_exit_code options...): `output` and `errors` hold what the program said.
function(plan expected)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} WORKING_DIRECTORY "${FOLDER}" RESULT_VARIABLE code
                  OUTPUT_VARIABLE said ERROR_VARIABLE complained)
  if(NOT code STREQUAL expected)
    message(FATAL_ERROR "refrain-plan ${ARGN} ended with ${code}, not ${expected}:\n"
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

# Three equal stages of one layer: 100 bytes between them, 900 kept, 1 s forward and 2 s backward.
set(run [[{"forward": 1.0, "backward": 2.0, "saved": 900, "forward_peak": 900, "backward_peak": 1000,
           "backward_peak_with_gradient": 1100, "replay_peak": 1100}]])
foreach(i RANGE 2)
  list(APPEND stages "{\"name\": \"Block\", \"input\": 100, \"output\": 100, \"nograd_forward\": 1.0,
    \"nograd_peak\": 200, \"tail\": 0.25, \"input_unsaved\": 0,
    \"input_saved_by_nobody\": 0, \"region_keeps\": 0, \"gradients\": 0, \"saved_tensors\": 900, \"options\": [],
    \"plain\": ${run}}")
  math(EXPR end "${i} + 1")
  list(APPEND layers "{\"begin\": ${i}, \"end\": ${end}}")
endforeach()
list(JOIN stages ", " stages)
list(JOIN layers ", " layers)
file(WRITE "${FOLDER}/profile.json"
     "{\"format\": 1, \"profile\": {\"chain\": {\"stages\": [${stages}], \"loss_peak\": 100,
      \"loss\": 0.0, \"held\": 0}, \"layers\": [${layers}], \"resident\": 5000, \"slack\": 0,
      \"device\": \"cpu\", \"executor\": \"hooks\", \"measured_loss\": false,
      \"signature\": {\"layers\": [], \"inputs\": [], \"device\": \"cpu\", \"libtorch\": \"\"}}}")

plan(0 show profile.json)
expect("${output}" "resident 4.88 KiB on cpu; a plain step peaks at 2.93 KiB above that")

plan(0 frontier profile.json --format csv)
expect("${output}" "^peak,step,overhead,replayed\n")
expect("${output}" "\n8000,9.0,0.0,0\n$")
plan(0 frontier profile.json --format json)
string(JSON first GET "${output}" 0 peak)
expect("${first}" "^[67][0-9][0-9][0-9]$")

plan(0 solve profile.json --budget ${first}B --out tight.json)
expect("${output}" "replayed")
plan(0 solve profile.json --budget 8000 --out plain.json --format json)
string(JSON peak GET "${output}" predicted_peak)
expect("${peak}" "^8000$")
plan(0 show tight.json)
expect("${output}" "replayed")
plan(0 diff tight.json plain.json)
expect("${output}" "layers +\\[0,")
expect("${output}" "\\[0,3\\)")
plan(0 solve tight.json --budget 1MiB)
expect("${output}" "kept")

plan(0 solve profile.json --budget 7150B --host-rate 1KB --out moved.json)
expect("${output}" "kept on host")
expect("${output}" "\nmoves [1-9][0-9.]* [KB]+i?B? to host and back; waits ")
plan(0 show moved.json)
expect("${output}" "kept on host")
plan(0 solve profile.json --budget 7150B --host-rate 1KB --host-size 100B --disk-rate 900B --format json)
string(JSON moved GET "${output}" moved disk)
expect("${moved}" "^[1-9]")
plan(0 solve profile.json --budget 7150B --host-rate 1KB --format csv)
expect("${output}" "^layers,what,keeps,moves\n")
plan(0 diff moved.json plain.json)
expect("${output}" "moves +[1-9]")
plan(0 frontier profile.json --host-rate 1KB --format csv)
expect("${output}" "^peak,step,overhead,replayed,moved\n")

plan(0 estimate --model llama-7b --batch 4 --device 80GiB)
expect("${output}" "llama-7b: 6738415616 parameters in 32 blocks")
expect("${output}" "queries, keys, values")
plan(0 estimate --layers 32 --width 4096 --heads 32 --ffn 16384 --vocab 32000 --batch 4
     --attention plain --format csv)
# The article's own figures for this shape are 12 and 48 GB of fixed memory and 20.25 at interval 4,
# without vocabulary and biases.
expect("${output}" "\n4,[0-9]+,(true|false),[0-9.]+,[0-9]+,[0-9.]+,8[0-9.]+,75.0\n")
plan(0 estimate --model gpt2 --seq 1024 --format json)
string(JSON count GET "${output}" parameters)
expect("${count}" "^124439808$")
string(JSON interval GET "${output}" advice interval)
expect("${interval}" "^12$")

plan(1 solve profile.json --budget 6KiB)
expect("${errors}" "no plan fits 6.00 KiB: the least reachable peak is")

plan(0 --help)
expect("${output}" "refrain-plan solve profile.json --budget 6GiB")
foreach(bad IN ITEMS "" "solve" "solve nowhere.json --budget 1GiB" "solve profile.json --budget much"
                     "solve profile.json --budget 1GiB --host-rate much"
                     "solve profile.json --budget 1GiB --host-size 1GiB"
                     "diff tight.json profile.json" "show checks.txt"
                     "frontier profile.json --format xml" "estimate" "estimate --model gpt9"
                     "estimate --model gpt2 --device much" "estimate --model gpt2 --batch 0"
                     "estimate --model gpt2 --optimizer lion" "show ."
                     "estimate --layers 20000 --width 64 --heads 4 --vocab 100")
  separate_arguments(words UNIX_COMMAND "${bad}")
  file(WRITE "${FOLDER}/checks.txt" "no JSON")
  plan(2 ${words})
  string(REGEX MATCHALL "\n" lines "${errors}")
  list(LENGTH lines count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "expected one sentence of ${bad}, got:\n${errors}")
  endif()
endforeach()
