// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/segment.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

/// A plan as a list of items, which a search changes one by one: regions, and single plain stages.
namespace refrain::planner {

using Items = std::vector<SegmentNode>;

[[nodiscard]] inline Items items_of(const std::vector<SegmentNode>& nodes) {
  Items items;
  for (const SegmentNode& node : nodes) {
    const std::int64_t size = node.replayed ? node.range.size() : 1;
    for (std::int64_t i = node.range.begin; i < node.range.end; i += size) {
      items.push_back(node);
      items.back().range = {i, i + size};
    }
  }
  return items;
}

/// Plain neighbours that are treated alike as one node.
[[nodiscard]] inline std::vector<SegmentNode> joined(const Items& items) {
  std::vector<SegmentNode> nodes;
  for (const SegmentNode& item : items) {
    const bool alike = !nodes.empty() && !item.replayed && !nodes.back().replayed &&
                       nodes.back().option == item.option && nodes.back().tier == item.tier;
    if (alike) {
      nodes.back().range.end = item.range.end;
    } else {
      nodes.push_back(item);
    }
  }
  return nodes;
}

/// `others` in the place of `count` items.
[[nodiscard]] inline Items replaced(Items items, std::size_t place, std::size_t count,
                                    const Items& others) {
  const auto from = items.begin() + static_cast<std::ptrdiff_t>(place);
  const auto at = items.erase(from, from + static_cast<std::ptrdiff_t>(count));
  items.insert(at, others.begin(), others.end());
  return items;
}

/// Each of some lists, all of it in one of `tiers`.
[[nodiscard]] inline std::vector<Items> in_each(const std::vector<std::int64_t>& tiers,
                                                const std::vector<Items>& lists) {
  std::vector<Items> all;
  for (Items items : lists) {
    for (const std::int64_t tier : tiers) {
      for (SegmentNode& item : items) item.tier = tier;
      if (!items.empty()) all.push_back(items);
    }
  }
  return all;
}

/// What may stand in an item's place: the same elsewhere, its stages one by one, what it is cut
/// into, or it in two.
[[nodiscard]] inline std::vector<Items> others_for(const SegmentNode& item,
                                                   const std::vector<std::int64_t>& tiers) {
  const auto [begin, end] = item.range;
  std::vector<Items> lists = {{item}, items_of(item.inside)};
  for (const bool replayed : {false, true}) {
    lists.emplace_back();
    for (std::int64_t i = begin; i < end; ++i) lists.back().push_back({{i, i + 1}, replayed});
  }
  for (std::int64_t i = begin + 1; i < end; ++i)
    lists.push_back({{{begin, i}, true}, {{i, end}, true}});
  return in_each(tiers, lists);
}

/// What may stand in the place of two: one region, or each of them elsewhere or, if it is one
/// stage, run otherwise.
[[nodiscard]] inline std::vector<Items> others_for(const SegmentNode& a, const SegmentNode& b,
                                                   const std::vector<std::int64_t>& tiers) {
  const auto ways = [&tiers](const SegmentNode& item) {
    std::vector<Items> lists = {{item}};
    if (item.range.size() == 1) lists = {{{item.range, false}}, {{item.range, true}}};
    return in_each(tiers, lists);
  };
  std::vector<Items> pairs = in_each(tiers, {{{{a.range.begin, b.range.end}, true}}});
  for (const Items& first : ways(a)) {
    for (const Items& second : ways(b)) pairs.push_back({first.front(), second.front()});
  }
  return pairs;
}

}  // namespace refrain::planner
