// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/mover.hpp>
#include <refrain/error.hpp>
#include <refrain/links.hpp>
#include <refrain/schedule.hpp>
#include <refrain/segment.hpp>
#include <refrain/stage_cost.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace refrain {

/// What a plan costs that moves memory to tiers. Its `seconds` count the stalls.
struct TieredCost : ScheduleCost {
  std::vector<std::int64_t> moved = {};  ///< Bytes to each tier, and as many back.
  double forward_stall = 0;              ///< Seconds that the computing waits for bytes to leave.
  double backward_stall = 0;             ///< Seconds that it waits for bytes to be back.

  friend bool operator==(const TieredCost&, const TieredCost&) = default;
};

namespace detail {

[[nodiscard]] inline TieredCost play(const std::vector<SegmentNode>& nodes, const ChainCost& chain,
                                     const std::vector<Links>& tiers, Executor executor) {
  ScheduleMachine<Mover> machine(chain, executor, Mover(movables(nodes, chain), tiers));
  TieredCost cost{machine.play(nodes)};
  cost.moved = machine.mover().moved();
  cost.forward_stall = machine.mover().forward_stall();
  cost.backward_stall = machine.mover().backward_stall();
  cost.seconds += cost.forward_stall + cost.backward_stall;
  return cost;
}

inline void check_tiers(const Segmentation& cut, const std::vector<Links>& tiers) {
  for (const Links& links : tiers) check(links);
  for (const SegmentNode& node : cut) {
    if (node.tier <= static_cast<std::int64_t>(tiers.size())) continue;
    throw PlanError(fmt::format("{} is moved to tier {}, of {} tiers.", to_string(node.range),
                                node.tier, tiers.size()),
                    fmt::format("got: {}", cut), "name as many tiers as the plan was made for.");
  }
}

}  // namespace detail

/// What a schedule costs that moves memory: `simulate`, with links between device and tiers.
///
///     auto cost = simulate(cut, chain, {host});   // node.tier 1 is `host`
///     cost.moved[0];                              // bytes to the host
///
/// What an item keeps leaves when its first run is over. The computing goes on, but waits before
/// more than `in_flight` bytes are on their way to a tier, or more than one item. Backward, whoever
/// begins asks for its bytes; then older ones are fetched, one or as many bytes as were asked for,
/// before they are asked for. The peak holds for links down to half as fast as named. Seconds are
/// infinite where a plan moves to a tier without a rate.
///
/// Throws `PlanError` as `simulate` does, and if a node's tier has no links; `OptionError` if links
/// cannot be.
[[nodiscard]] inline TieredCost simulate(const Segmentation& cut, const ChainCost& chain,
                                         const std::vector<Links>& tiers,
                                         Executor executor = Executor::Hooks) {
  detail::check_stages(cut, chain);
  detail::check_options(cut.nodes(), chain);
  detail::check_tiers(cut, tiers);
  return detail::play(cut.nodes(), chain, tiers, executor);
}

}  // namespace refrain
