// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/policy/any_policy.hpp>
#include <refrain/segment.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace refrain::policy {
namespace detail {

/// The same pieces of a chain that begins `by` stages earlier.
inline std::vector<SegmentNode> moved_by(std::vector<SegmentNode> nodes, std::int64_t by) {
  for (SegmentNode& node : nodes) {
    node.range = {node.range.begin + by, node.range.end + by};
    node.inside = moved_by(std::move(node.inside), by);
  }
  return nodes;
}

/// How `policy` cuts these stages of a chain, when backward begins at the last of them.
inline std::vector<SegmentNode> cut_range(const AnyPolicy& policy, const Chain& chain,
                                          Segment range) {
  Chain part;
  part.stages.assign(chain.stages.begin() + range.begin, chain.stages.begin() + range.end);
  return moved_by(policy.cut(part).nodes(), range.begin);
}

/// Plain neighbours become one.
inline void add_node(std::vector<SegmentNode>& nodes, SegmentNode node) {
  const auto is_plain = [](const SegmentNode& one) {
    return !one.replayed && one.option == 0 && one.tier == 0;
  };
  if (!nodes.empty() && is_plain(nodes.back()) && is_plain(node)) {
    nodes.back().range.end = node.range.end;
  } else {
    nodes.push_back(std::move(node));
  }
}

inline Segmentation cut_nested(const AnyPolicy& outer, const AnyPolicy& inner, const Chain& chain) {
  if (chain.stages.empty()) return {};
  Chain goes_on = chain;
  goes_on.tail = Tail::More;
  // A last segment that is plain for the loss alone: its own cut takes its place.
  const bool spares_last = !outer.cut(chain).nodes().back().replayed;
  std::vector<SegmentNode> nodes;
  for (SegmentNode node : outer.cut(goes_on)) {
    if (node.replayed && node.inside.empty()) {
      auto inside = cut_range(inner, chain, node.range);
      const bool is_cut = std::any_of(inside.begin(), inside.end(),
                                      [](const SegmentNode& part) { return part.replayed; });
      if (spares_last && node.range.end == chain.size()) {
        for (SegmentNode& part : inside) add_node(nodes, std::move(part));
        break;
      }
      if (is_cut) node.inside = std::move(inside);
    }
    add_node(nodes, std::move(node));
  }
  return {chain.size(), std::move(nodes)};
}

}  // namespace detail

/// The segments of `outer`, the replay of each cut by `inner`.
///
///     auto how = policy::nested(policy::every(64), policy::binomial(8));
///
/// Memory: what `outer` keeps, and of one segment at a time what `inner` keeps. Time: another
/// forward for `outer`, and that of `inner` on top. If the loss follows and `outer` leaves its last
/// segment plain for that, `inner` cuts it.
///
/// `every(k)` as the outer one asks for n/k results of n stages, however many those are: the policy
/// for loops whose length nobody knows ahead.
[[nodiscard]] inline AnyPolicy nested(AnyPolicy outer, AnyPolicy inner) {
  auto name = fmt::format("nested({}, {})", outer.describe(), inner.describe());
  const auto period = outer.period();
  return {std::move(name),
          [outer = std::move(outer), inner = std::move(inner)](const Chain& chain) {
            return detail::cut_nested(outer, inner, chain);
          },
          period};
}

}  // namespace refrain::policy
