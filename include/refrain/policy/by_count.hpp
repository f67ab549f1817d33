// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/planner/binomial.hpp>
#include <refrain/policy/any_policy.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace refrain::policy {

/// What becomes of the last segment when the loss follows it.
enum class LastSegment {
  Plain,   ///< left plain: backward starts there, so its replay would cost time and save nothing
  Replay,  ///< replayed like the others
};

/// These segments, each replayed, the last by the rule of `last`. For policies of your own.
[[nodiscard]] inline Segmentation replay_each(const Chain& chain, const std::vector<Segment>& cut,
                                              LastSegment last = LastSegment::Plain) {
  std::vector<SegmentNode> nodes;
  nodes.reserve(cut.size());
  for (const Segment& segment : cut) nodes.push_back({segment, true, {}});
  if (!nodes.empty()) {
    nodes.back().replayed = chain.tail == Tail::More || last == LastSegment::Replay;
  }
  return {chain.size(), std::move(nodes)};
}

/// Each stage that `chosen` names by its index is replayed alone, the stages between are plain;
/// the last stage by the rule of `last`. For policies of your own.
[[nodiscard]] inline Segmentation replay_where(const Chain& chain,
                                               const std::predicate<std::int64_t> auto& chosen,
                                               LastSegment last = LastSegment::Plain) {
  const bool spare_last = chain.tail == Tail::Loss && last == LastSegment::Plain;
  std::vector<SegmentNode> nodes;
  for (std::int64_t i = 0; i < chain.size(); ++i) {
    const bool replayed = chosen(i) && !(spare_last && i + 1 == chain.size());
    const bool grows = !replayed && !nodes.empty() && !nodes.back().replayed;
    if (grows) {
      nodes.back().range.end = i + 1;
    } else {
      nodes.push_back({{i, i + 1}, replayed, {}});
    }
  }
  return {chain.size(), std::move(nodes)};
}

namespace detail {

/// The policy called `name(n)`, after a look at n.
inline AnyPolicy counted(std::string_view name, std::int64_t n, LastSegment last,
                         AnyPolicy::Cut cut, std::optional<std::int64_t> period = {}) {
  if (n < 1) {
    throw OptionError(
        fmt::format("policy::{}({}): the number is {}, it must be at least 1.", name, n, n),
        "to replay nothing, say policy::none().");
  }
  return {
      fmt::format("{}({}{})", name, n, last == LastSegment::Replay ? ", LastSegment::Replay" : ""),
      std::move(cut), period};
}

inline AnyPolicy uncounted(std::string_view name, LastSegment last, AnyPolicy::Cut cut,
                           std::optional<std::int64_t> period = {}) {
  return {fmt::format("{}({})", name, last == LastSegment::Replay ? "LastSegment::Replay" : ""),
          std::move(cut), period};
}

/// A schedule of m steps and few slots nests as deep as the least repeats r with C(slots + r,
/// slots)
/// >= m, and each level is a call in a call.
inline void require_depth(std::int64_t slots, std::int64_t stages) {
  constexpr std::int64_t kDeepest = 200;
  if (planner::binomial_reach(slots, kDeepest) >= stages) return;
  throw PlanError(fmt::format("policy::binomial({}): {} stages would nest deeper than {} replays.",
                              slots, stages, kDeepest),
                  "give it more slots.");
}

/// The first half replayed and itself cut so, then the same with what is left; the last is a leaf.
inline std::vector<SegmentNode> halves(Segment range, bool replay_leaf) {
  std::vector<SegmentNode> nodes;
  while (range.size() > 1) {
    const Segment first{range.begin, (range.begin + range.end) / 2};
    nodes.push_back(
        {first, true, first.size() > 1 ? halves(first, false) : std::vector<SegmentNode>{}});
    range.begin = first.end;
  }
  nodes.push_back({range, replay_leaf, {}});
  return nodes;
}

}  // namespace detail

/// Nothing is replayed.
[[nodiscard]] inline AnyPolicy none() {
  const auto cut = [](const Chain& chain) {
    return replay_where(chain, [](std::int64_t) { return false; });
  };
  return detail::uncounted("none", LastSegment::Plain, cut, 1);
}

/// Each stage is its own segment.
[[nodiscard]] inline AnyPolicy all(LastSegment last = LastSegment::Plain) {
  const auto cut = [last](const Chain& chain) {
    return replay_where(chain, [](std::int64_t) { return true; }, last);
  };
  return detail::uncounted("all", last, cut, 1);
}

/// Segments of `k` stages; the last may be shorter.
[[nodiscard]] inline AnyPolicy every(std::int64_t k, LastSegment last = LastSegment::Plain) {
  const auto cut = [k, last](const Chain& chain) {
    std::vector<Segment> segments;
    for (std::int64_t begin = 0; begin < chain.size();) {
      const std::int64_t end = begin + std::min(k, chain.size() - begin);
      segments.push_back({begin, end});
      begin = end;
    }
    return replay_each(chain, segments, last);
  };
  return detail::counted("every", k, last, cut, k);
}

/// Stages 0, k, 2k, … are replayed, each alone; the others are plain.
[[nodiscard]] inline AnyPolicy one_in(std::int64_t k, LastSegment last = LastSegment::Plain) {
  const auto cut = [k, last](const Chain& chain) {
    return replay_where(chain, [k](std::int64_t i) { return i % k == 0; }, last);
  };
  return detail::counted("one_in", k, last, cut, k);
}

/// The first `n` stages are replayed, each alone: the cheapest way to replay some of many equal
/// stages.
[[nodiscard]] inline AnyPolicy first(std::int64_t n, LastSegment last = LastSegment::Plain) {
  return detail::counted("first", n, last, [n, last](const Chain& chain) {
    if (!chain.stages.empty() && n > chain.size()) {
      throw OptionError(fmt::format("policy::first({}): the chain has {} stages.", n, chain.size()),
                        "to replay all of them, say policy::all().");
    }
    return replay_where(chain, [n](std::int64_t i) { return i < n; }, last);
  });
}

/// `n` segments whose sizes differ by at most one, larger first.
[[nodiscard]] inline AnyPolicy segments(std::int64_t n, LastSegment last = LastSegment::Plain) {
  return detail::counted("segments", n, last, [n, last](const Chain& chain) {
    return chain.stages.empty() ? Segmentation()
                                : replay_each(chain, even_segments(chain.size(), n), last);
  });
}

/// About √m segments of m stages: the classical choice, right when a stage keeps no more than its
/// own result. A transformer block keeps some seventeen times that: prefer `every(1)` or
/// `every(2)`.
[[nodiscard]] inline AnyPolicy sqrt_n(LastSegment last = LastSegment::Plain) {
  return detail::uncounted("sqrt_n", last, [last](const Chain& chain) {
    const auto n = std::llround(std::sqrt(static_cast<double>(chain.size())));
    return n == 0 ? Segmentation() : replay_each(chain, even_segments(chain.size(), n), last);
  });
}

/// Recursive halving: the first half is replayed, its replay cut the same way, then the second
/// half.
///
/// Memory: about log₂ m live results. Time: (m/2)·log₂ m more forwards.
[[nodiscard]] inline AnyPolicy binary(LastSegment last = LastSegment::Plain) {
  return detail::uncounted("binary", last, [last](const Chain& chain) {
    if (chain.stages.empty()) return Segmentation();
    const bool replay_leaf = chain.tail == Tail::More || last == LastSegment::Replay;
    return Segmentation(chain.size(), detail::halves({0, chain.size()}, replay_leaf));
  });
}

/// The fewest forwards with `slots` kept results, the chain's input among them, and one stage's
/// activations: for loops of many equal steps and little memory.
///
/// Time: `planner::binomial_extra_forwards(m, slots)` more forwards of a stage. Source: Griewank
/// and Walther, revolve (2000).
[[nodiscard]] inline AnyPolicy binomial(std::int64_t slots, LastSegment last = LastSegment::Plain) {
  return detail::counted("binomial", slots, last, [slots, last](const Chain& chain) {
    if (chain.stages.empty()) return Segmentation();
    detail::require_depth(slots, chain.size());
    auto nodes = planner::binomial_nodes({0, chain.size()}, slots);
    nodes.back().replayed = chain.tail == Tail::More || last == LastSegment::Replay;
    return Segmentation(chain.size(), std::move(nodes));
  });
}

}  // namespace refrain::policy
