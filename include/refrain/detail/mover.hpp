// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/links.hpp>
#include <refrain/segment.hpp>
#include <refrain/stage_cost.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace refrain::detail {

/// What an item of a plan, a region or one plain stage, keeps for its backward and can be moved.
struct Movable {
  std::int64_t bytes = 0;
  std::int64_t tier = 0;
};

/// Of a stage run plainly: what autograd saves, but neither input nor output.
[[nodiscard]] inline std::int64_t movable_inside(const StageCost& stage) {
  return std::max<std::int64_t>(0, std::min(stage.saved_tensors, stage.plain.saved) - stage.output);
}

/// Of each item, at the place of its first stage. The tensor between two items goes with the one
/// that reads it, but stays if a plain stage made it that stays or moves elsewhere, and may have
/// saved it too. The chain's input is the caller's. What a stage run in an option keeps stays.
[[nodiscard]] inline std::vector<Movable> movables(const std::vector<SegmentNode>& nodes,
                                                   const ChainCost& chain) {
  std::vector<Movable> items(static_cast<std::size_t>(chain.size()));
  constexpr std::int64_t kRegion = -1;  // saves nothing of its result
  std::int64_t maker = 0;               // its tier
  for (const SegmentNode& node : nodes) {
    const std::int64_t end = node.replayed ? node.range.begin + 1 : node.range.end;
    for (std::int64_t i = node.range.begin; i < end; ++i) {
      const std::int64_t inside = node.replayed ? 0 : movable_inside(chain[i]);
      const std::int64_t read = chain[i].input - (node.replayed ? 0 : chain[i].input_unsaved);
      if (node.tier != 0 && node.option == 0) {
        items[static_cast<std::size_t>(i)] = {
            inside + (maker == kRegion || maker == node.tier ? read : 0), node.tier};
      }
      maker = node.replayed ? kRegion : node.option == 0 ? node.tier : 0;
    }
  }
  return items;
}

/// A link counts as so many times slower where the question is whether memory is free yet: peaks
/// hold on a machine that is busy.
inline constexpr double kPatience = 2;

/// Moves items over links as the executor does, item by item.
///
/// Copies of one direction follow each other, and none comes back before it has left. An item has
/// left once the computing has waited for it, or when its copy would be over on a link that is
/// `patience` times slower.
class Mover {
 public:
  Mover(const std::vector<Movable>& items, const std::vector<Links>& tiers,
        double patience = kPatience)
      : patience_(patience) {
    for (const Movable& item : items) items_.push_back({item});
    for (const Links& links : tiers) lines_.push_back({links});
  }

  /// The first run of an item is over after so many seconds of computing: the change in bytes.
  std::int64_t leave(std::int64_t stage, double computed) {
    Item& item = items_[static_cast<std::size_t>(stage)];
    std::int64_t left = those_left(computed);
    if (item.bytes == 0) return -left;
    Line& line = line_of(item);
    while (!line.leaving.empty() &&
           line.bytes_leaving + item.bytes > line.links.in_flight.count()) {
      wait_until(line.leaving.front()->out_end, computed, forward_stall_);
      left += oldest_has_left(line);
    }
    const double seconds = line.links.seconds_out(item.bytes);
    item.out_end = line.out_free = std::max(now(computed), line.out_free) + seconds;
    item.gone_for_sure = line.surely_free =
        std::max(now(computed), line.surely_free) + patience_ * seconds;
    line.leaving.push_back(&item);
    line.away.push_back(&item);
    line.bytes_leaving += item.bytes;
    line.moved += item.bytes;
    return -left;
  }

  /// The backward of an item begins, and older ones are fetched ahead: the change in bytes.
  std::int64_t fetch(std::int64_t stage, double computed) {
    Item& item = items_[static_cast<std::size_t>(stage)];
    std::int64_t back = -those_left(computed);
    if (item.bytes == 0) return back;
    Line& line = line_of(item);
    if (item.ahead) {
      line.bytes_ahead -= item.bytes;
    } else {
      back += bring_next(line, computed);
    }
    while (!line.away.empty() && may_fetch(line, *line.away.back(), item)) {
      Item& older = *line.away.back();
      older.ahead = true;
      line.bytes_ahead += older.bytes;
      back += bring_next(line, computed);
    }
    wait_until(item.back_end, computed, backward_stall_);
    return back;
  }

  /// To each tier, in bytes.
  [[nodiscard]] std::vector<std::int64_t> moved() const {
    std::vector<std::int64_t> moved;
    for (const Line& line : lines_) moved.push_back(line.moved);
    return moved;
  }
  [[nodiscard]] double forward_stall() const { return forward_stall_; }
  [[nodiscard]] double backward_stall() const { return backward_stall_; }

 private:
  struct Item : Movable {
    double out_end = 0;
    double gone_for_sure = 0;
    double back_end = 0;
    bool left = false;
    bool fetched = false;
    bool ahead = false;  ///< Fetched before it was asked for.
  };
  /// Both links of a tier.
  struct Line {
    Links links;
    double out_free = 0;
    double surely_free = 0;
    double back_free = 0;
    std::deque<Item*> leaving = {};  ///< May still be on the device.
    std::int64_t bytes_leaving = 0;
    std::vector<Item*> away = {};  ///< Not yet fetched, in the order they left.
    std::int64_t bytes_ahead = 0;  ///< Fetched, and not yet asked for.
    std::int64_t moved = 0;
  };

  Line& line_of(const Item& item) { return lines_[static_cast<std::size_t>(item.tier - 1)]; }

  /// Bytes of the items whose time is over.
  std::int64_t those_left(double computed) {
    std::int64_t left = 0;
    for (Line& line : lines_) {
      while (!line.leaving.empty() && line.leaving.front()->gone_for_sure <= now(computed))
        left += oldest_has_left(line);
    }
    return left;
  }

  /// One that was fetched while it may have been here is here again.
  static std::int64_t oldest_has_left(Line& line) {
    Item& oldest = *line.leaving.front();
    line.leaving.pop_front();
    line.bytes_leaving -= oldest.bytes;
    oldest.left = !oldest.fetched;
    return oldest.left ? oldest.bytes : 0;
  }

  /// As much again as is asked for now, and at least one.
  static bool may_fetch(const Line& line, const Item& item, const Item& asked) {
    return line.bytes_ahead == 0 || line.bytes_ahead + item.bytes <= asked.bytes;
  }

  std::int64_t bring_next(Line& line, double computed) {
    Item& item = *line.away.back();
    line.away.pop_back();
    const double start = std::max({now(computed), line.back_free, item.out_end});
    item.back_end = line.back_free = start + line.links.seconds_back(item.bytes);
    item.fetched = true;
    return item.left ? item.bytes : 0;
  }

  [[nodiscard]] double now(double computed) const {
    return computed + forward_stall_ + backward_stall_;
  }
  void wait_until(double moment, double computed, double& stall) const {
    stall += std::max(0.0, moment - now(computed));
  }

  double patience_;
  std::vector<Item> items_;
  std::vector<Line> lines_;
  double forward_stall_ = 0;
  double backward_stall_ = 0;
};

}  // namespace refrain::detail
