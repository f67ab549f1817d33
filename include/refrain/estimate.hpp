// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/estimate/advice.hpp>
#include <refrain/estimate/article.hpp>
#include <refrain/estimate/block.hpp>
#include <refrain/estimate/block_bytes.hpp>
#include <refrain/estimate/block_flops.hpp>
#include <refrain/estimate/chain.hpp>
#include <refrain/estimate/interval.hpp>
#include <refrain/estimate/model.hpp>
#include <refrain/estimate/recommend.hpp>
#include <refrain/estimate/reported.hpp>
#include <refrain/estimate/sweep.hpp>
#include <refrain/estimate/training.hpp>
#include <refrain/estimate/workload.hpp>
