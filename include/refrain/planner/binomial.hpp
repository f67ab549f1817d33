// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>
#include <refrain/segment.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

/// Binomial schedules for chains of equal steps: the fewest forwards with a given number of kept
/// states.
///
/// Source: Griewank and Walther, revolve (2000). A step's own activations are kept for one step at
/// a time; what a chain that keeps more of them gains, `planner::Frontier` finds.
namespace refrain::planner {

/// The longest chain that `slots` kept states reverse with no step run forward more than `repeats`
/// times besides its last run: the binomial coefficient (slots + repeats, slots). Stops growing at
/// 2⁶².
[[nodiscard]] constexpr std::int64_t binomial_reach(std::int64_t slots, std::int64_t repeats) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  const std::int64_t few = std::min(slots, repeats);
  const std::int64_t many = std::max(slots, repeats);
  if (few < 0) return 0;
  std::int64_t reach = 1;
  for (std::int64_t i = 1; i <= few; ++i) {
    if (reach > kMost / (many + i)) return kMost;
    reach = reach * (many + i) / i;
  }
  return reach;
}

/// The forwards of `steps` equal steps besides the one each, with `slots` kept states, of which the
/// first state is one.
///
///     binomial_extra_forwards(10, 3);   // 15
///
/// Throws `OptionError` if there is no slot for more than one step, or a negative number of steps.
[[nodiscard]] inline std::int64_t binomial_extra_forwards(std::int64_t steps, std::int64_t slots) {
  if (steps < 0 || (slots < 1 && steps > 1)) {
    throw OptionError(fmt::format("cannot reverse {} steps with {} slots.", steps, slots),
                      "the first state takes one: give at least 1.");
  }
  if (steps <= 1) return 0;
  std::int64_t repeats = 1;
  while (binomial_reach(slots, repeats) < steps) ++repeats;
  return repeats * steps - binomial_reach(slots + 1, repeats - 1);
}

/// How many of `steps` steps run before the next state is kept, in a best schedule; the least such
/// number.
[[nodiscard]] inline std::int64_t binomial_split(std::int64_t steps, std::int64_t slots) {
  if (slots == 1) return steps - 1;
  const std::int64_t best = binomial_extra_forwards(steps, slots);
  std::int64_t split = 1;
  while (split + binomial_extra_forwards(split, slots) +
             binomial_extra_forwards(steps - split, slots - 1) >
         best) {
    ++split;
  }
  return split;
}

/// A best schedule: `slots` states live at most, the first among them, and one step's activations.
///
/// Time to make it: about steps² / 2 at most.
[[nodiscard]] inline std::vector<SegmentNode> binomial_nodes(Segment range, std::int64_t slots) {
  std::vector<SegmentNode> nodes;
  while (range.size() > 1) {
    const Segment first{range.begin, range.begin + binomial_split(range.size(), slots)};
    nodes.push_back({first, true});
    if (first.size() > 1) nodes.back().inside = binomial_nodes(first, slots);
    range.begin = first.end;
    --slots;
  }
  nodes.push_back({range, false});
  return nodes;
}

}  // namespace refrain::planner
