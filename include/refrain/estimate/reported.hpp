// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/estimate/check.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

/// Rules of thumb that are told without the means to check them, and contradict each other in part:
/// to compare with, not to advise from.
namespace refrain::estimate::reported {

/// Both ends of a range count.
struct Range {
  std::int64_t least = 0;
  std::int64_t most = 0;
};

struct IntervalRule {
  std::int64_t below_parameters = 0;
  Range interval;      ///< Blocks a checkpoint.
  Range saved_pct;     ///< Of memory; of which memory is not told.
  Range overhead_pct;  ///< Of a step.
  bool offload = false;
};

inline constexpr std::int64_t kBillion = 1'000'000'000;
inline constexpr std::array<IntervalRule, 4> kIntervalBySize = {
    IntervalRule{kBillion, {8, 16}, {30, 40}, {5, 10}},
    IntervalRule{10 * kBillion, {4, 8}, {50, 60}, {10, 20}},
    IntervalRule{100 * kBillion, {1, 2}, {70, 80}, {25, 35}},
    IntervalRule{std::numeric_limits<std::int64_t>::max(), {1, 1}, {85, 90}, {50, 100}, true}};

/// The interval that is told for a model of so many parameters. What bytes say is
/// `estimate::ideal_interval`: for transformer blocks 1 to 2 at any size.
[[nodiscard]] inline const IntervalRule& interval_by_size(std::int64_t parameters) {
  detail::at_least_one("the number of parameters", parameters);
  std::size_t i = 0;
  while (i + 1 < kIntervalBySize.size() && parameters >= kIntervalBySize[i].below_parameters) ++i;
  return kIntervalBySize[i];
}

}  // namespace refrain::estimate::reported
