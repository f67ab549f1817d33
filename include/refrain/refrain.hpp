// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/checkpoint.hpp>
#include <refrain/checkpoint_loop.hpp>
#include <refrain/enable.hpp>
#include <refrain/error.hpp>
#include <refrain/explain.hpp>
#include <refrain/fit.hpp>
#include <refrain/keep.hpp>
#include <refrain/lint.hpp>
#include <refrain/memory.hpp>
#include <refrain/offload.hpp>
#include <refrain/options.hpp>
#include <refrain/plan.hpp>
#include <refrain/policy.hpp>
#include <refrain/profiler.hpp>
#include <refrain/record.hpp>
#include <refrain/replay.hpp>
#include <refrain/segment.hpp>
#include <refrain/verify.hpp>
#include <refrain/version.hpp>
#include <refrain/visit_tensors.hpp>
