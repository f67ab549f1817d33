// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/mover.hpp>
#include <refrain/error.hpp>
#include <refrain/links.hpp>
#include <refrain/planner/frontier.hpp>
#include <refrain/planner/plan_items.hpp>
#include <refrain/planner/tier_judge.hpp>
#include <refrain/schedule.hpp>
#include <refrain/segment.hpp>
#include <refrain/stage_cost.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace refrain::planner {

/// Plans that move memory to tiers, for every budget: a second pass over the plans of `Frontier`.
///
///     planner::TieredFrontier frontier(chain, {host, disk});
///     frontier.points();                  // {{least peak found, its seconds}, …}
///     frontier.plan(6_GiB.count()).cut;   // nodes with `tier`
///
/// A search, which keeps each plan that it looks at and no other beats. So more budget is never
/// worse, and no plan of `Frontier` is better; but a better one may exist. It looks at beginnings
/// of a few plans, as they are and with all of their items moved, before plans of the rest. For
/// budgets on a ladder the best so far is improved: one item or two are moved, kept, replayed, cut
/// or joined, and the rest after its first items is planned anew, while that helps.
///
/// Time: some ten thousand simulations for 32 stages, and about their square for more; beyond 128
/// stages nothing is improved. Throws `OptionError` as `Frontier` does, and if links cannot be.
class TieredFrontier {
 public:
  /// A plan, and the links with the windows that it was found for.
  struct Choice {
    Segmentation cut;
    std::vector<Links> tiers;
  };

  TieredFrontier(const ChainCost& chain, const std::vector<Links>& tiers,
                 Executor executor = Executor::Hooks, Frontier::Limits limits = {})
      : chain_(chain), frontier_(chain, executor, limits), judge_(chain, tiers, executor) {
    look_at_rests({}, 0, frontier_.rests(0));
    if (judge_.usable().empty() || chain.size() == 0) return;
    look_at_prefixes();
    if (chain.size() > kMostImproved) return;
    improve(0);
    const std::int64_t least = judge_.kept().steps().begin()->first;
    const std::int64_t most = judge_.kept().steps().rbegin()->first;
    for (int rung = 1; rung < kRungs; ++rung) improve(least + (most - least) * rung / kRungs);
  }

  /// By rising peak and falling time.
  [[nodiscard]] std::vector<Frontier::Point> points() const {
    std::vector<Frontier::Point> points;
    for (const auto& [peak, step] : judge_.kept().steps()) points.push_back({peak, step.seconds});
    return points;
  }

  /// Throws `BudgetError` if none fits.
  [[nodiscard]] Choice plan(std::int64_t budget) const {
    const auto& steps = judge_.kept().steps();
    const auto found = judge_.kept().within(budget);
    if (found == steps.end()) {
      throw BudgetError(
          fmt::format("no plan fits {} bytes.", budget),
          steps.empty() ? std::string("no plan is within the limits of the solve.")
                        : fmt::format("the least peak found is {} bytes.", steps.begin()->first));
    }
    const TierJudge::Kept& kept = found->second.plan;
    return {{chain_.size(), kept.nodes}, judge_.windows()[kept.window]};
  }

 private:
  using Candidate = TierJudge::Candidate;

  static constexpr int kRungs = 16;                   // budgets from which plans are improved
  static constexpr std::size_t kRests = 12;           // plans of what follows a prefix
  static constexpr std::size_t kMostPrefixes = 128;   // of one plan
  static constexpr std::int64_t kMostImproved = 128;  // stages: more would take seconds

  void look_at_prefixes() {
    for (const Items& start : starts()) {
      const std::size_t step = 1 + start.size() / (kMostPrefixes + 1);
      for (std::size_t count = 1; count <= start.size(); count += step) {
        for (const Items& prefix : prefixes(start, count)) {
          for (std::size_t window = 0; window < judge_.windows().size(); ++window)
            look_at_rests(prefix, window, kRests);
        }
      }
    }
  }

  /// All plain; each stage replayed; and plain stages that move whenever a link is free, between
  /// stages of other kinds.
  [[nodiscard]] std::vector<Items> starts() const {
    const SegmentNode plain;
    const SegmentNode replayed{{}, true};
    const SegmentNode moved{{}, true, {}, 0, judge_.usable().front()};
    return {paced({}, plain), paced({}, replayed), paced(judge_.usable(), plain),
            paced(judge_.usable(), replayed), paced(judge_.usable(), moved)};
  }

  /// Single stages: each plain and moved to the first of `tiers` whose link out is free when it has
  /// run, or else like `other`.
  [[nodiscard]] Items paced(const std::vector<std::int64_t>& tiers, SegmentNode other) const {
    Items items;
    std::vector<double> free(judge_.windows()[0].size());
    double now = 0;
    for (std::int64_t i = 0; i < chain_.size(); ++i) {
      now += chain_[i].plain.forward;
      other.range = {i, i + 1};
      items.push_back(other);
      for (const std::int64_t tier : tiers) {
        double& link_free = free[static_cast<std::size_t>(tier - 1)];
        if (link_free > now) continue;
        link_free = now + judge_.links(tier).seconds_out(detail::movable_inside(chain_[i]));
        items.back() = {other.range, false, {}, 0, tier};
        break;
      }
    }
    return items;
  }

  /// The first few items, and the same with all of them moved.
  [[nodiscard]] std::vector<Items> prefixes(const Items& items, std::size_t count) const {
    const Items prefix(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(count));
    Items moved = prefix;
    judge_.move(moved);
    return {prefix, moved};
  }

  /// How many plans there are of what follows.
  [[nodiscard]] std::size_t rests_after(const Items& prefix) const {
    const std::int64_t first = prefix.empty() ? 0 : prefix.back().range.end;
    return first == chain_.size() ? 1 : frontier_.rests(first);
  }
  [[nodiscard]] Items with_rest(Items prefix, std::size_t index) const {
    const std::int64_t first = prefix.empty() ? 0 : prefix.back().range.end;
    if (first == chain_.size()) return prefix;
    const Items rest = items_of(frontier_.rest(first, index));
    prefix.insert(prefix.end(), rest.begin(), rest.end());
    return prefix;
  }

  /// So many of the plans of what follows, from the leanest to the fastest.
  void look_at_rests(const Items& prefix, std::size_t window, std::size_t most) {
    const std::size_t rests = rests_after(prefix);
    const std::size_t count = std::min(most, rests);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t index = count == 1 ? 0 : i * (rests - 1) / (count - 1);
      (void)judge_.judged(with_rest(prefix, index), window, 0);
    }
  }

  /// From the best plan kept for a budget on, or the leanest.
  void improve(std::int64_t budget) {
    auto found = judge_.kept().within(budget);
    if (found == judge_.kept().steps().end()) found = judge_.kept().steps().begin();
    const TierJudge::Kept start = found->second.plan;
    Candidate best = judge_.judged(items_of(start.nodes), start.window, budget);
    do {
      while (change_items(best, budget)) {
      }
    } while (plan_rest_anew(best, budget));
  }

  static bool take(Candidate candidate, Candidate& best) {
    if (!(candidate.value < best.value)) return false;
    best = std::move(candidate);
    return true;
  }

  /// One or two at a time, and the windows.
  bool change_items(Candidate& best, std::int64_t budget) {
    std::vector<std::int64_t> tiers = judge_.usable();
    tiers.push_back(0);
    bool better = false;
    const auto put = [&](std::size_t place, std::size_t count, const std::vector<Items>& lists) {
      for (const Items& others : lists) {
        Items items = replaced(best.items, place, count, others);
        if (!take(judge_.judged(std::move(items), best.window, budget), best)) continue;
        better = true;
        return;
      }
    };
    for (std::size_t i = 0; i < best.items.size(); ++i) {
      put(i, 1, others_for(best.items[i], tiers));
      if (i + 1 < best.items.size()) put(i, 2, others_for(best.items[i], best.items[i + 1], tiers));
    }
    for (std::size_t window = 0; window < judge_.windows().size(); ++window)
      better = take(judge_.judged(best.items, window, budget), best) || better;
    return better;
  }

  bool plan_rest_anew(Candidate& best, std::int64_t budget) {
    bool better = false;
    const Items items = best.items;
    for (std::size_t count = 0; count <= items.size(); ++count) {
      for (const Items& prefix : prefixes(items, count))
        better = take(with_best_rest(prefix, best.window, budget), best) || better;
    }
    return better;
  }

  /// By halving: of the plans of the rest, one with more memory takes less time.
  Candidate with_best_rest(const Items& prefix, std::size_t window, std::int64_t budget) {
    Candidate best;
    std::size_t low = 0;
    std::size_t high = rests_after(prefix);
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      Candidate candidate = judge_.judged(with_rest(prefix, middle), window, budget);
      if (candidate.value.over > 0) {
        high = middle;
      } else {
        low = middle + 1;
      }
      take(std::move(candidate), best);
    }
    return best;
  }

  ChainCost chain_;
  Frontier frontier_;
  TierJudge judge_;
};

}  // namespace refrain::planner
