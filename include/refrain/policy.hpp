// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/policy/any_policy.hpp>
#include <refrain/policy/by_count.hpp>
#include <refrain/policy/by_name.hpp>
#include <refrain/policy/by_profile.hpp>
#include <refrain/policy/nested.hpp>
#include <refrain/policy/ops.hpp>
