# SPDX-License-Identifier: BSD-3-Clause
#
# A header may include its own floor or a lower one. Below floor 2 there is no LibTorch; LibTorch's
# internals are for floor 2, detail/routes and cuda. Run as a script (HEADERS=include/refrain) it prints
# each line that breaks this; included, it only gives the table.

# Regular expressions on the path below include/refrain. The first that matches counts.
set(refrain_floor_0 version error bytes links segment stage_cost schedule tiered_schedule "detail/mover")
set(refrain_floor_1 profile signature policy policy/.+ plan planner/.+ estimate estimate/.+ "ledger(_.+)?" finding memory_sample "detail/(json_file|best_cut|plain_at_no_cost)" plan_file verify_report verify_options saved_report)
set(refrain_floor_2
    options visit_tensors memory memory_timeline tier
    "detail/(any_region|saved_hooks|op_tap|surroundings|forward_signature|memory_meter|counting_allocator)"
    "detail/(outside_state|outside_tensors|input_entries|random_state|stream_order|footprint)"
    "detail/(operator_traits|tensor_facts|layout|written_shapes|outside_graph|other_path|rebuilder)"
    "detail/(births|first_run|region_inputs|slots|stop_rule|graph_border|pointer_map|any_value|body|module_mirror)"
    "detail/(turn|short_what|step_meter|step_trace|tensor_difference|step_undone|terminal_progress)"
    "detail/(argument_tensors|kept_node|saved_list|fingerprint|op_log|value_check|backend_tap|operator_names|kept_operators|kept_results|kept_call|keep_scope)"
    "detail/(cache_sweep|device_meter|reached|held_value|graph_ends|storage_set|saved_storages|leaf_gradients|profiled_chain|chain_scan)"
    "detail/(frozen_since|live_samples|memory_reports|saves_watcher|recorded_call|step_recorder|call_record)"
    "detail/(memory_view|moved_storage|moved_tensor|move_line|move_hook)")
set(refrain_floor_3 "tier/.+" "detail/(decorator|side_streams|host_memory|host_item|spill_file|copy_worker|gaps|disk_store)")
set(refrain_floor_4 replay keep
    "detail/(frame|routes/.+|region|segment_regions|first_call|keep_call|loop_types|loop_runner|open_loop_runner)")
set(refrain_floor_5 "checkpoint(_.+)?" enable profiler profile_options verify explain record lint fit offload measure_links refrain
                    "detail/(stage_meter|shared_leaves|chain_profiler|measured_step|lint_step)")
set(refrain_floor_6 distributed/.+ cuda/.+)

set(refrain_libtorch_include "^(torch|ATen|c10|caffe2)/")
set(refrain_internal_include "^(torch/csrc|ATen/core/dispatch)/")

# Sets `floor` to the number, or to nothing for a header that the table does not know.
function(refrain_floor_of header floor)
  set(${floor} "" PARENT_SCOPE)
  string(REGEX REPLACE "\\.hpp$" "" name "${header}")
  foreach(number RANGE 6)
    foreach(pattern IN LISTS refrain_floor_${number})
      if(name MATCHES "^${pattern}$")
        set(${floor} ${number} PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()
endfunction()

function(refrain_check_header root header complaints)
  set(said "")
  refrain_floor_of("${header}" floor)
  if(floor STREQUAL "")
    set(${complaints} "${header}: on no floor; add it to the table in cmake/check_floors.cmake\n"
        PARENT_SCOPE)
    return()
  endif()
  file(STRINGS "${root}/${header}" lines REGEX "^[ \t]*#[ \t]*include")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE ".*[<\"](.*)[>\"].*" "\\1" included "${line}")
    set(wrong "")
    if(included MATCHES "^refrain/(.+)")
      set(other "${CMAKE_MATCH_1}")
      refrain_floor_of("${other}" other_floor)
      if(other STREQUAL "refrain.hpp")
        set(wrong "the umbrella is for users")
      elseif(other_floor GREATER floor)
        set(wrong "floor ${other_floor} from floor ${floor}")
      endif()
    elseif(line MATCHES "\"")
      set(wrong "include refrain's headers as <refrain/...>")
    elseif(included STREQUAL "torch/torch.h")
      set(wrong "include the narrowest LibTorch header that serves")
    elseif(included MATCHES "${refrain_libtorch_include}" AND floor LESS 2)
      set(wrong "no LibTorch below floor 2")
    elseif(included MATCHES "${refrain_internal_include}" AND NOT floor EQUAL 2
           AND NOT header MATCHES "^(detail/routes|cuda)/")
      set(wrong "LibTorch's internals are for floor 2, detail/routes and cuda")
    endif()
    if(wrong)
      string(APPEND said "${header}: ${line}: ${wrong}\n")
    endif()
  endforeach()
  set(${complaints} "${said}" PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE AND DEFINED HEADERS)
  cmake_policy(VERSION 3.25)
  get_filename_component(HEADERS "${HEADERS}" ABSOLUTE)
  file(GLOB_RECURSE headers RELATIVE "${HEADERS}" "${HEADERS}/*.hpp")
  foreach(header IN LISTS headers)
    refrain_check_header("${HEADERS}" "${header}" complaints)
    string(APPEND all "${complaints}")
  endforeach()
  list(LENGTH headers count)
  if(all)
    message(NOTICE "${all}")
    message(FATAL_ERROR "Headers do not keep to their floors, see above.")
  elseif(count EQUAL 0)
    message(FATAL_ERROR "no header under ${HEADERS}")
  endif()
  message(STATUS "${count} headers keep to their floors")
endif()
