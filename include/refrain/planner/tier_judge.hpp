// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/mover.hpp>
#include <refrain/links.hpp>
#include <refrain/planner/plan_items.hpp>
#include <refrain/planner/staircase.hpp>
#include <refrain/schedule.hpp>
#include <refrain/segment.hpp>
#include <refrain/stage_cost.hpp>
#include <refrain/tiered_schedule.hpp>

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace refrain::planner {

/// Plays plans that move memory, says how good they are for a budget, and keeps each that no other
/// beats. Knows the tiers: which there are, what they hold, and in which windows memory may move.
class TierJudge {
 public:
  /// What a plan needs above the budget and above what tiers hold, then its time. Less is better.
  struct Value {
    std::int64_t over = std::numeric_limits<std::int64_t>::max();
    double seconds = std::numeric_limits<double>::infinity();
    friend auto operator<=>(const Value&, const Value&) = default;
  };
  struct Candidate {
    Items items = {};
    std::size_t window = 0;
    Value value = {};
  };
  struct Kept {
    std::vector<SegmentNode> nodes;
    std::size_t window = 0;
  };

  /// Throws `OptionError` if links cannot be.
  TierJudge(const ChainCost& chain, const std::vector<Links>& tiers, Executor executor)
      : chain_(chain), executor_(executor) {
    for (const Links& links : tiers) check(links);
    for (const std::int64_t part : kWindowParts) windows_.push_back(narrowed(tiers, part));
    for (std::size_t i = 0; i < tiers.size(); ++i) {
      if (tiers[i].usable()) usable_.push_back(static_cast<std::int64_t>(i) + 1);
    }
  }

  [[nodiscard]] Candidate judged(Items items, std::size_t window, std::int64_t budget) {
    const TieredCost cost = detail::play(items, chain_, windows_[window], executor_);
    std::int64_t crowded = 0;
    for (std::size_t i = 0; i < cost.moved.size(); ++i)
      crowded += std::max<std::int64_t>(0, cost.moved[i] - windows_[0][i].capacity.count());
    if (crowded == 0)
      kept_.add(cost.peak, cost.seconds, [&] { return Kept{nodes_of(items), window}; });
    const std::int64_t over = std::max<std::int64_t>(0, cost.peak - budget) + crowded;
    return {std::move(items), window, {over, cost.seconds}};
  }

  /// All of them: to the first tier that has room, the last first, for the earliest have most time.
  void move(Items& items) const {
    for (SegmentNode& item : items) item.tier = usable_.front();
    const auto movable = detail::movables(items, chain_);
    auto tier = usable_.begin();
    std::int64_t room = links(*tier).capacity.count();
    for (auto item = items.rbegin(); item != items.rend(); ++item) {
      const std::int64_t bytes = movable[static_cast<std::size_t>(item->range.begin)].bytes;
      while (tier != usable_.end() && bytes > room)
        room = ++tier == usable_.end() ? 0 : links(*tier).capacity.count();
      item->tier = tier == usable_.end() ? 0 : *tier;
      room -= bytes;
    }
  }

  [[nodiscard]] const Staircase<Kept>& kept() const { return kept_; }
  [[nodiscard]] const std::vector<std::vector<Links>>& windows() const { return windows_; }
  /// Numbers of the tiers that links lead to.
  [[nodiscard]] const std::vector<std::int64_t>& usable() const { return usable_; }
  [[nodiscard]] const Links& links(std::int64_t tier) const {
    return windows_[0][static_cast<std::size_t>(tier - 1)];
  }

 private:
  /// What the windows of the links are divided by: less memory, and more waiting.
  static constexpr std::array<std::int64_t, 3> kWindowParts = {1, 8, 0};  // 0: one item at a time

  static std::vector<Links> narrowed(std::vector<Links> tiers, std::int64_t part) {
    for (Links& links : tiers) links.in_flight = part == 0 ? Bytes() : links.in_flight / part;
    return tiers;
  }

  /// No tier where there is nothing to move.
  [[nodiscard]] std::vector<SegmentNode> nodes_of(Items items) const {
    const auto movable = detail::movables(items, chain_);
    for (SegmentNode& item : items) {
      const bool by_region = item.replayed || item.option != 0;
      if (by_region && movable[static_cast<std::size_t>(item.range.begin)].bytes == 0)
        item.tier = 0;
    }
    return joined(items);
  }

  ChainCost chain_;
  Executor executor_;
  std::vector<std::vector<Links>> windows_;  ///< The tiers' links, in each width of windows.
  std::vector<std::int64_t> usable_;
  Staircase<Kept> kept_;
};

}  // namespace refrain::planner
