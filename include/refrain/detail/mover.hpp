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

/// Of a stage run with grad: what autograd saves, but neither input nor output. What an option
/// keeps is not autograd's.
[[nodiscard]] inline std::int64_t movable_inside(const StageCost& stage, std::int64_t option) {
  if (option != 0) return 0;
  return std::max<std::int64_t>(0, std::min(stage.saved_tensors, stage.plain.saved) - stage.output);
}

/// Of each item, at the place of its first stage. The tensor between two items goes with the one
/// that reads it, but stays if a plain stage that stays made it and may have saved it too. The
/// chain's input is the caller's.
[[nodiscard]] inline std::vector<Movable> movables(const std::vector<SegmentNode>& nodes,
                                                   const ChainCost& chain) {
  std::vector<Movable> items(static_cast<std::size_t>(chain.size()));
  bool maker_lets_go = false;
  for (const SegmentNode& node : nodes) {
    const std::int64_t end = node.replayed ? node.range.begin + 1 : node.range.end;
    for (std::int64_t i = node.range.begin; i < end; ++i) {
      const std::int64_t inside = node.replayed ? 0 : movable_inside(chain[i], node.option);
      const std::int64_t read = chain[i].input - (node.replayed ? 0 : chain[i].input_unsaved);
      if (node.tier != 0)
        items[static_cast<std::size_t>(i)] = {inside + (maker_lets_go ? read : 0), node.tier};
      maker_lets_go = node.replayed || node.tier != 0;
    }
  }
  return items;
}

/// Moves items over links as the executor does, item by item, and keeps two accounts.
///
/// Of bytes, without a clock, so that a slow link costs time and never memory: an item has left
/// once the computing would have waited for that, and is back from the moment it may be fetched. Of
/// seconds: copies of one direction follow each other, and none comes back before it has left.
class Mover {
 public:
  Mover(const std::vector<Movable>& items, const std::vector<Links>& tiers) {
    for (const Movable& item : items) items_.push_back({item.bytes, item.tier});
    for (const Links& links : tiers) lines_.push_back({links});
  }

  /// The first run of an item is over, after so many seconds of computing: bytes that have left.
  std::int64_t leave(std::int64_t stage, double computed) {
    Item& item = items_[static_cast<std::size_t>(stage)];
    if (item.bytes == 0) return 0;
    Line& line = line_of(item);
    std::int64_t left = 0;
    while (!line.leaving.empty() &&
           line.bytes_leaving + item.bytes > line.links.in_flight.count()) {
      left += wait_for_oldest(line, computed);
    }
    const double start = std::max(now(computed), line.out_free);
    item.out_end = line.out_free = start + line.links.seconds_out(item.bytes);
    line.leaving.push_back(&item);
    line.away.push_back(&item);
    line.bytes_leaving += item.bytes;
    line.moved += item.bytes;
    return left;
  }

  /// The backward of an item begins, and older ones are fetched ahead: bytes that are back.
  std::int64_t fetch(std::int64_t stage, double computed) {
    Item& item = items_[static_cast<std::size_t>(stage)];
    if (item.bytes == 0) return 0;
    Line& line = line_of(item);
    std::int64_t back = 0;
    if (item.ahead) {
      line.bytes_ahead -= item.to_fetch();
    } else {
      back += bring_next(line, computed);
    }
    while (!line.away.empty() && may_fetch(line, *line.away.back())) {
      Item& older = *line.away.back();
      older.ahead = true;
      line.bytes_ahead += older.to_fetch();
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
    double back_end = 0;
    bool left = false;   ///< For sure: the computing has waited for it.
    bool ahead = false;  ///< Fetched before it was asked for.

    [[nodiscard]] std::int64_t to_fetch() const { return left ? bytes : 0; }
  };
  /// Both links of a tier.
  struct Line {
    Links links;
    double out_free = 0;
    double back_free = 0;
    std::deque<Item*> leaving = {};  ///< May still be on the device.
    std::int64_t bytes_leaving = 0;
    std::vector<Item*> away = {};  ///< Not yet fetched, in the order they left.
    std::int64_t bytes_ahead = 0;  ///< Fetched, and not yet asked for.
    std::int64_t moved = 0;
  };

  Line& line_of(const Item& item) { return lines_[static_cast<std::size_t>(item.tier - 1)]; }

  std::int64_t wait_for_oldest(Line& line, double computed) {
    Item& oldest = *line.leaving.front();
    line.leaving.pop_front();
    line.bytes_leaving -= oldest.bytes;
    oldest.left = true;
    wait_until(oldest.out_end, computed, forward_stall_);
    return oldest.bytes;
  }

  static bool may_fetch(const Line& line, const Item& item) {
    return line.bytes_ahead == 0 || line.bytes_ahead + item.to_fetch() <= line.links.ahead.count();
  }

  std::int64_t bring_next(Line& line, double computed) {
    Item& item = *line.away.back();
    line.away.pop_back();
    const double start = std::max({now(computed), line.back_free, item.out_end});
    item.back_end = line.back_free = start + line.links.seconds_back(item.bytes);
    return item.to_fetch();
  }

  [[nodiscard]] double now(double computed) const {
    return computed + forward_stall_ + backward_stall_;
  }
  void wait_until(double moment, double computed, double& stall) const {
    stall += std::max(0.0, moment - now(computed));
  }

  std::vector<Item> items_;
  std::vector<Line> lines_;
  double forward_stall_ = 0;
  double backward_stall_ = 0;
};

}  // namespace refrain::detail
