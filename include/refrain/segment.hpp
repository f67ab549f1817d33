// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace refrain {

/// The stages `begin, …, end - 1` of a chain.
struct Segment {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] constexpr std::int64_t size() const { return end - begin; }
  friend constexpr bool operator==(const Segment&, const Segment&) = default;
};

/// One piece of a chain: run plainly, or forgotten and replayed.
struct SegmentNode {
  Segment range;
  bool replayed = false;
  std::vector<SegmentNode> inside =
      {};  ///< How the replay itself is cut; empty: its stages run plainly.
  /// Which of each stage's options it runs: 0, plainly; or as a region with the first, second, … of
  /// a list of operator policies, which keeps some of it and replays the rest. Not inside a replay,
  /// and it moves nothing.
  std::int64_t option = 0;
  /// Where what it keeps is moved between forward and backward: 0, it stays; or the first, second,
  /// … of a list of tiers. What a replay keeps is not moved.
  std::int64_t tier = 0;

  friend bool operator==(const SegmentNode&, const SegmentNode&) = default;
};

[[nodiscard]] inline std::string to_string(const Segment& segment) {
  return fmt::format("[{},{})", segment.begin, segment.end);
}

/// "[0,3)* [3,6)* [6,9)": a star is a replay, and "[0,4)*([0,2)* [2,4))" is one that is itself cut;
/// "[6,9):1" runs the first option of its stages; "[0,3)*@1" is moved to the first tier.
[[nodiscard]] inline std::string to_string(const std::vector<SegmentNode>& nodes) {
  std::string text;
  for (const SegmentNode& node : nodes) {
    if (!text.empty()) text += ' ';
    text += to_string(node.range);
    if (node.replayed) text += '*';
    if (node.option != 0) text += fmt::format(":{}", node.option);
    if (node.tier != 0) text += fmt::format("@{}", node.tier);
    if (!node.inside.empty()) text += fmt::format("({})", to_string(node.inside));
  }
  return text;
}

/// How a chain of stages is cut, and which pieces are replayed: the answer of a segment policy.
///
///     Segmentation cut(9, {{{0, 3}, true}, {{3, 6}, true}, {{6, 9}, false}});
///     fmt::print("{}\n", cut);   // "[0,3)* [3,6)* [6,9)"
///
/// Invariant: the nodes cover `[0, stages)` in order and without gaps, each has a stage, and what
/// is inside a replayed node covers that node in the same way. Throws `PlanError` when constructed
/// from nodes that do not.
class Segmentation {
 public:
  Segmentation() = default;
  /// `keeps`: which operator policies the nodes' options were planned with, described; whoever
  /// applies them compares.
  Segmentation(std::int64_t stages, std::vector<SegmentNode> nodes,
               std::vector<std::string> keeps = {})
      : stages_(stages), nodes_(std::move(nodes)), keeps_(std::move(keeps)) {
    check(nodes_, {0, stages_});
    for (const SegmentNode& node : nodes_) check_option_stays(node);
    for (const SegmentNode& node : nodes_) check_inside(node.inside);
  }

  [[nodiscard]] std::int64_t stages() const { return stages_; }
  [[nodiscard]] const std::vector<SegmentNode>& nodes() const { return nodes_; }
  [[nodiscard]] const std::vector<std::string>& keeps() const { return keeps_; }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] bool empty() const { return nodes_.empty(); }
  [[nodiscard]] auto begin() const { return nodes_.begin(); }
  [[nodiscard]] auto end() const { return nodes_.end(); }

  friend bool operator==(const Segmentation&, const Segmentation&) = default;

 private:
  static void check(const std::vector<SegmentNode>& nodes, const Segment& whole) {
    std::int64_t next = whole.begin;
    for (const SegmentNode& node : nodes) {
      if (node.range.begin != next)
        fail(node.range, fmt::format("must begin at {}", next), nodes, whole);
      if (node.range.size() < 1) fail(node.range, "has no stage", nodes, whole);
      if (!node.inside.empty() && !node.replayed)
        fail(node.range, "is cut but not replayed", nodes, whole);
      if (node.option < 0 || (node.option > 0 && node.replayed))
        fail(node.range, fmt::format("cannot run option {}", node.option), nodes, whole);
      if (node.tier < 0) fail(node.range, fmt::format("has tier {}", node.tier), nodes, whole);
      if (!node.inside.empty()) check(node.inside, node.range);
      next = node.range.end;
    }
    if (next != whole.end) fail(whole, fmt::format("is covered up to {} only", next), nodes, whole);
  }

  static void check_option_stays(const SegmentNode& node) {
    if (node.option == 0 || node.tier == 0) return;
    throw PlanError(fmt::format("{} runs option {}, and is moved to tier {}.",
                                to_string(node.range), node.option, node.tier),
                    "what an option keeps is not moved: choose one of the two.");
  }

  static void check_inside(const std::vector<SegmentNode>& inside) {
    for (const SegmentNode& node : inside) {
      if (node.option != 0) {
        throw PlanError(fmt::format("{} runs option {}, but it is inside a replay.",
                                    to_string(node.range), node.option),
                        "what it keeps would be kept from the first run on: put it beside the "
                        "replayed piece.");
      }
      if (node.tier != 0) {
        throw PlanError(fmt::format("{} is moved to tier {}, but it is inside a replay.",
                                    to_string(node.range), node.tier),
                        "what a replay keeps is read soon after: move the replayed piece itself.");
      }
      check_inside(node.inside);
    }
  }

  [[noreturn]] static void fail(const Segment& where, const std::string& what,
                                const std::vector<SegmentNode>& nodes, const Segment& whole) {
    throw PlanError(fmt::format("segments must cover {} in order, without gaps, but {} {}.",
                                to_string(whole), to_string(where), what),
                    fmt::format("got: {}", nodes.empty() ? "no segments" : to_string(nodes)));
  }

  std::int64_t stages_ = 0;
  std::vector<SegmentNode> nodes_;
  std::vector<std::string> keeps_;
};

[[nodiscard]] inline std::string to_string(const Segmentation& cut) {
  return to_string(cut.nodes());
}

/// `stages` cut into `count` segments whose sizes differ by at most one, larger first.
///
///     even_segments(9, 5);   // [0,2) [2,4) [4,6) [6,8) [8,9)
///
/// Throws `OptionError` if `count` is not in `[1, stages]`.
[[nodiscard]] inline std::vector<Segment> even_segments(std::int64_t stages, std::int64_t count) {
  if (count < 1 || count > stages) {
    throw OptionError(fmt::format("cannot cut {} stages into {} segments.", stages, count),
                      fmt::format("a segment has at least one stage: ask for 1 to {}.", stages));
  }
  std::vector<Segment> segments;
  segments.reserve(static_cast<std::size_t>(count));
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t size = stages / count + (i < stages % count ? 1 : 0);
    segments.push_back({begin, begin + size});
    begin += size;
  }
  return segments;
}

}  // namespace refrain

template <>
struct fmt::formatter<refrain::Segment> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const refrain::Segment& segment, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(refrain::to_string(segment), context);
  }
};

template <>
struct fmt::formatter<refrain::Segmentation> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const refrain::Segmentation& cut, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(refrain::to_string(cut), context);
  }
};
