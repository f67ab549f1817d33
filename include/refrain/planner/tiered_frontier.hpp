// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/error.hpp>
#include <refrain/links.hpp>
#include <refrain/planner/frontier.hpp>
#include <refrain/schedule.hpp>
#include <refrain/segment.hpp>
#include <refrain/stage_cost.hpp>
#include <refrain/tiered_schedule.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

namespace refrain::planner {

/// Plans that move memory to tiers, for every budget: a second pass over the plans of `Frontier`.
///
///     planner::TieredFrontier frontier(chain, {host, disk});
///     frontier.points();                  // {{least peak found, its seconds}, …}
///     frontier.plan(6_GiB.count()).cut;   // nodes with `tier`
///
/// The search looks at plans for a ladder of budgets and keeps each that no other beats, in bytes
/// and seconds. So more budget is never worse, and no plan of `Frontier` is better; but nothing
/// says that a better plan than the one found does not exist. For each budget: of a plan, the first
/// items are moved and the rest is planned anew with what that frees, as long as this helps; then
/// single items are moved, kept, replayed or run plainly while that helps.
///
/// Time: a few thousand simulations a budget. Throws `OptionError` as `Frontier` does, and if links
/// cannot be.
class TieredFrontier {
 public:
  /// A plan, and the links with the windows it was found for.
  struct Choice {
    Segmentation cut;
    std::vector<Links> tiers;
  };

  TieredFrontier(const ChainCost& chain, const std::vector<Links>& tiers,
                 Executor executor = Executor::Hooks, Frontier::Limits limits = {})
      : chain_(chain), executor_(executor), frontier_(chain, executor, limits) {
    for (const Links& links : tiers) check(links);
    for (const std::int64_t part : kWindowParts) windows_.push_back(narrowed(tiers, part));
    for (std::size_t i = 0; i < tiers.size(); ++i) {
      if (tiers[i].usable()) usable_.push_back(static_cast<std::int64_t>(i) + 1);
    }
    if (usable_.empty() || chain.size() == 0) {
      keep_rests({}, 0, frontier_.rests(0));
      return;
    }
    look_at_prefixes();
    if (chain.size() > kMostImproved) return;
    improve(0);
    const auto least = static_cast<double>(found_.begin()->first);
    const auto most = static_cast<double>(found_.rbegin()->first);
    for (int rung = 1; rung < kRungs; ++rung) improve(least + (most - least) * rung / kRungs);
  }

  /// By rising peak and falling time.
  [[nodiscard]] std::vector<Frontier::Point> points() const {
    std::vector<Frontier::Point> points;
    for (const auto& [peak, plan] : found_) points.push_back({peak, plan.seconds});
    return points;
  }

  /// Throws `BudgetError` if none fits.
  [[nodiscard]] Choice plan(std::int64_t budget) const {
    const auto above = found_.upper_bound(budget);
    if (above == found_.begin()) {
      throw BudgetError(
          fmt::format("no plan fits {} bytes.", budget),
          found_.empty() ? std::string("no plan is within the limits of the solve.")
                         : fmt::format("the least peak found is {} bytes.", found_.begin()->first));
    }
    const Found& found = std::prev(above)->second;
    return {{chain_.size(), found.nodes}, windows_[found.window]};
  }

 private:
  using Nodes = std::vector<SegmentNode>;

  /// What the windows of the links are divided by: less memory, and more waiting.
  static constexpr std::array<std::int64_t, 3> kWindowParts = {1, 8, 0};  // 0: one item at a time
  static constexpr int kRungs = 16;                  // budgets from which plans are improved
  static constexpr std::size_t kRests = 12;          // plans of what follows a prefix
  static constexpr std::size_t kMostPrefixes = 128;  // of one plan
  // Of more stages, plans are taken as they are found: improving them takes seconds.
  static constexpr std::int64_t kMostImproved = 128;

  struct Found {
    double seconds = 0;
    Nodes nodes = {};
    std::size_t window = 0;
  };
  /// Of a plan: what it needs above the budget and above what tiers hold, then its time.
  struct Value {
    double over = std::numeric_limits<double>::infinity();
    double seconds = std::numeric_limits<double>::infinity();
    friend auto operator<=>(const Value&, const Value&) = default;
  };
  /// A plan in the making: its plain nodes have one stage each.
  struct Candidate {
    Nodes items = {};
    std::size_t window = 0;
    Value value = {};
  };

  static std::vector<Links> narrowed(std::vector<Links> tiers, std::int64_t part) {
    for (Links& links : tiers) {
      links.in_flight = part == 0 ? Bytes() : links.in_flight / part;
      links.ahead = part == 0 ? Bytes() : links.ahead / part;
    }
    return tiers;
  }

  /// Each beginning of a few plans, as it is and with all of it moved, before plans of the rest.
  void look_at_prefixes() {
    keep_rests({}, 0, frontier_.rests(0));
    for (const Nodes& start : starts()) {
      const std::size_t step = 1 + start.size() / (kMostPrefixes + 1);
      for (std::size_t count = 1; count <= start.size(); count += step) {
        for (const Nodes& prefix : prefixes(start, count)) {
          for (std::size_t window = 0; window < windows_.size(); ++window)
            keep_rests(prefix, window, kRests);
        }
      }
    }
  }

  /// All plain; each stage replayed; and plain stages that move whenever a link is free, between
  /// stages of other kinds.
  [[nodiscard]] std::vector<Nodes> starts() const {
    return {paced({}, {}), paced({}, {{}, true}), paced(usable_, {{}, false}),
            paced(usable_, {{}, true}), paced(usable_, {{}, true, {}, 0, usable_.front()})};
  }

  /// Single stages: each plain and moved to the first of `tiers` whose link out is free when it has
  /// run, or else like `other`.
  [[nodiscard]] Nodes paced(const std::vector<std::int64_t>& tiers, SegmentNode other) const {
    Nodes nodes;
    std::vector<double> free(windows_[0].size());
    double now = 0;
    for (std::int64_t i = 0; i < chain_.size(); ++i) {
      now += chain_[i].plain.forward;
      other.range = {i, i + 1};
      nodes.push_back(other);
      for (const std::int64_t tier : tiers) {
        const auto place = static_cast<std::size_t>(tier - 1);
        if (free[place] > now) continue;
        free[place] = now + windows_[0][place].seconds_out(detail::movable_inside(chain_[i], 0));
        nodes.back() = {{i, i + 1}, false, {}, 0, tier};
        break;
      }
    }
    return nodes;
  }

  [[nodiscard]] std::vector<Nodes> prefixes(const Nodes& items, std::size_t count) const {
    const Nodes prefix(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(count));
    Nodes moved = prefix;
    move_all(moved);
    return {prefix, moved};
  }

  /// So many of the plans of what follows, from the leanest to the fastest.
  void keep_rests(const Nodes& prefix, std::size_t window, std::size_t most) {
    const std::int64_t first = prefix.empty() ? 0 : prefix.back().range.end;
    const std::size_t rests = frontier_.rests(first);
    const std::size_t count = first == chain_.size() ? 1 : std::min(most, rests);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t index = count == 1 ? 0 : i * (rests - 1) / (count - 1);
      Candidate candidate = with_rest(prefix, window, index);
      judge(candidate, 0);
    }
  }
  [[nodiscard]] Candidate with_rest(const Nodes& prefix, std::size_t window,
                                    std::size_t index) const {
    const std::int64_t first = prefix.empty() ? 0 : prefix.back().range.end;
    Candidate candidate{prefix, window};
    if (first < chain_.size()) append(candidate.items, frontier_.rest(first, index));
    return candidate;
  }

  /// From the best plan found for a budget on.
  void improve(double budget) {
    auto found = std::find_if(found_.rbegin(), found_.rend(), [budget](const auto& entry) {
      return static_cast<double>(entry.first) <= budget;
    });
    if (found == found_.rend()) --found;
    Candidate best{items_of(found->second.nodes), found->second.window};
    judge(best, budget);
    do {
      while (flip(best, budget)) {
      }
    } while (plan_rest_anew(best, budget));
  }

  bool plan_rest_anew(Candidate& best, double budget) {
    bool better = false;
    const Nodes items = best.items;
    for (std::size_t count = 0; count <= items.size(); ++count) {
      for (const Nodes& prefix : prefixes(items, count))
        better = take(with_best_rest(prefix, best.window, budget), best) || better;
    }
    return better;
  }

  /// By halving: of the plans of the rest, one with more memory takes less time.
  Candidate with_best_rest(const Nodes& prefix, std::size_t window, double budget) {
    const std::int64_t first = prefix.empty() ? 0 : prefix.back().range.end;
    Candidate best;
    std::size_t low = 0;
    std::size_t high = first == chain_.size() ? 1 : frontier_.rests(first);
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      Candidate candidate = with_rest(prefix, window, middle);
      judge(candidate, budget);
      (candidate.value.over > 0 ? high : low) = middle + (candidate.value.over > 0 ? 0 : 1);
      take(std::move(candidate), best);
    }
    return best;
  }

  /// Puts others in the place of one item or two, or narrows the windows, where that is better.
  bool flip(Candidate& best, double budget) {
    bool better = false;
    const auto try_it = [&](Nodes items, std::size_t window) {
      Candidate candidate{std::move(items), window};
      judge(candidate, budget);
      const bool taken = take(std::move(candidate), best);
      better = better || taken;
      return taken;
    };
    for (std::size_t i = 0; i < best.items.size(); ++i) {
      for (const Nodes& other : others(best.items[i])) {
        if (try_it(replaced(best.items, i, 1, other), best.window)) break;
      }
      if (i + 1 >= best.items.size()) break;
      for (const Nodes& other : pairs(best.items[i], best.items[i + 1])) {
        if (try_it(replaced(best.items, i, 2, other), best.window)) break;
      }
    }
    for (std::size_t window = 0; window < windows_.size(); ++window) try_it(best.items, window);
    return better;
  }

  static Nodes replaced(Nodes items, std::size_t place, std::size_t count, const Nodes& others) {
    const auto from = items.begin() + static_cast<std::ptrdiff_t>(place);
    const auto at = items.erase(from, from + static_cast<std::ptrdiff_t>(count));
    items.insert(at, others.begin(), others.end());
    return items;
  }

  /// The tiers that there are, and none.
  [[nodiscard]] std::vector<std::int64_t> places() const {
    std::vector<std::int64_t> places = usable_;
    places.push_back(0);
    return places;
  }

  /// What may stand in an item's place: the same elsewhere, its stages one by one, what it is cut
  /// into, or it in two.
  [[nodiscard]] std::vector<Nodes> others(const SegmentNode& item) const {
    std::vector<Nodes> others = {{item}, items_of(item.inside)};
    for (const bool replayed : {false, true}) {
      others.emplace_back();
      for (std::int64_t i = item.range.begin; i < item.range.end; ++i)
        others.back().push_back({{i, i + 1}, replayed});
    }
    for (std::int64_t i = item.range.begin + 1; i < item.range.end; ++i)
      others.push_back({{{item.range.begin, i}, true}, {{i, item.range.end}, true}});
    return everywhere(others, {item});
  }

  /// What may stand in the place of two: one, or both otherwise.
  [[nodiscard]] std::vector<Nodes> pairs(const SegmentNode& a, const SegmentNode& b) const {
    std::vector<Nodes> pairs = everywhere({{{{a.range.begin, b.range.end}, true}}}, {});
    for (const SegmentNode& first : ways(a)) {
      for (const SegmentNode& second : ways(b)) pairs.push_back({first, second});
    }
    return pairs;
  }
  [[nodiscard]] std::vector<SegmentNode> ways(const SegmentNode& item) const {
    std::vector<SegmentNode> ways;
    for (const std::int64_t tier : places()) {
      for (const bool replayed : {false, true}) {
        if (item.range.size() == 1) ways.push_back({item.range, replayed, {}, 0, tier});
      }
      if (item.range.size() > 1) {
        ways.push_back(item);
        ways.back().tier = tier;
      }
    }
    return ways;
  }

  /// Each of some lists in each tier, and in none, but not what is there already.
  [[nodiscard]] std::vector<Nodes> everywhere(const std::vector<Nodes>& lists,
                                              const Nodes& there) const {
    std::vector<Nodes> all;
    for (Nodes nodes : lists) {
      for (const std::int64_t tier : places()) {
        for (SegmentNode& node : nodes) node.tier = tier;
        if (!nodes.empty() && nodes != there) all.push_back(nodes);
      }
    }
    return all;
  }

  static bool take(Candidate candidate, Candidate& best) {
    if (!(candidate.value < best.value)) return false;
    best = std::move(candidate);
    return true;
  }

  /// To the first tier that has room, the last items first: the earliest have the most time.
  void move_all(Nodes& items) const {
    for (SegmentNode& item : items) item.tier = usable_.front();
    const auto movable = detail::movables(items, chain_);
    auto tier = usable_.begin();
    std::int64_t room = capacity(*tier);
    for (auto item = items.rbegin(); item != items.rend(); ++item) {
      const std::int64_t bytes = movable[static_cast<std::size_t>(item->range.begin)].bytes;
      while (tier != usable_.end() && bytes > room)
        room = ++tier == usable_.end() ? 0 : capacity(*tier);
      item->tier = tier == usable_.end() ? 0 : *tier;
      room -= bytes;
    }
  }
  [[nodiscard]] std::int64_t capacity(std::int64_t tier) const {
    return windows_[0][static_cast<std::size_t>(tier - 1)].capacity.count();
  }

  /// Plays a plan, and keeps it if no other beats it.
  void judge(Candidate& candidate, double budget) {
    const TieredCost cost =
        detail::play(candidate.items, chain_, windows_[candidate.window], executor_);
    double crowded = 0;
    for (std::size_t i = 0; i < cost.moved.size(); ++i) {
      const auto room = capacity(static_cast<std::int64_t>(i) + 1);
      crowded += static_cast<double>(std::max<std::int64_t>(0, cost.moved[i] - room));
    }
    const double over = std::max(0.0, static_cast<double>(cost.peak) - budget);
    candidate.value = {over + crowded, cost.seconds};
    if (crowded == 0) keep(candidate, cost);
  }

  void keep(const Candidate& candidate, const TieredCost& cost) {
    const auto above = found_.upper_bound(cost.peak);
    if (above != found_.begin() && std::prev(above)->second.seconds <= cost.seconds) return;
    auto beaten = found_.lower_bound(cost.peak);
    while (beaten != found_.end() && beaten->second.seconds >= cost.seconds)
      beaten = found_.erase(beaten);
    found_[cost.peak] = {cost.seconds, merged(candidate.items), candidate.window};
  }

  static void append(Nodes& items, const Nodes& nodes) {
    for (const SegmentNode& node : nodes) {
      if (node.replayed) {
        items.push_back(node);
        continue;
      }
      for (std::int64_t i = node.range.begin; i < node.range.end; ++i)
        items.push_back({{i, i + 1}, false, {}, node.option, node.tier});
    }
  }
  static Nodes items_of(const Nodes& nodes) {
    Nodes items;
    append(items, nodes);
    return items;
  }

  /// Plain neighbours as one node, and no tier where there is nothing to move.
  [[nodiscard]] Nodes merged(const Nodes& items) const {
    const auto movable = detail::movables(items, chain_);
    Nodes nodes;
    for (SegmentNode item : items) {
      if (item.replayed && movable[static_cast<std::size_t>(item.range.begin)].bytes == 0)
        item.tier = 0;
      if (!nodes.empty() && !item.replayed && !nodes.back().replayed &&
          nodes.back().option == item.option && nodes.back().tier == item.tier) {
        nodes.back().range.end = item.range.end;
      } else {
        nodes.push_back(std::move(item));
      }
    }
    return nodes;
  }

  ChainCost chain_;
  Executor executor_;
  Frontier frontier_;
  std::vector<std::vector<Links>> windows_;
  std::vector<std::int64_t> usable_;     ///< Tiers that links lead to.
  std::map<std::int64_t, Found> found_;  ///< By peak, with falling seconds.
};

}  // namespace refrain::planner
