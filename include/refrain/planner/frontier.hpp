// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>
#include <refrain/schedule.hpp>
#include <refrain/segment.hpp>
#include <refrain/stage_cost.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace refrain::planner {

/// The cheapest plan for every budget, in one solve: dynamic programming over the stages between
/// two borders, each cell a staircase of bytes against seconds.
///
///     planner::Frontier frontier(chain);
///     frontier.points();            // {{least feasible peak, its seconds}, …, {all kept, …}}
///     frontier.plan(6_GiB.count()); // the cheapest schedule within it
///
/// Exact: bytes are not rounded, and every plan's cost is what `simulate` says. With at most
/// `longest_list` steps a cell it is near exact, and never optimistic: what is left out are plans.
///
/// Throws `OptionError` for more than 4096 stages.
///
/// Time: about N³/6 merges of two staircases, whose length is about 2.5 N for equal stages; N²
/// where all stages are equal. Memory: 32 bytes a step, N²/2 cells (2 N for equal stages).
///
/// Source: the recurrence of rotor (Beaumont and others), with separate peaks and an early-stop
/// rebate.
class Frontier {
 public:
  struct Limits {
    std::int64_t budget =
        std::numeric_limits<std::int64_t>::max();  ///< Plans above it are left out.
    std::size_t longest_list = std::numeric_limits<std::size_t>::max();
  };
  struct Point {
    std::int64_t peak = 0;
    double seconds = 0;
    friend bool operator==(const Point&, const Point&) = default;
  };

  explicit Frontier(const ChainCost& chain, Executor executor = Executor::Hooks)
      : Frontier(chain, executor, Limits()) {}

  Frontier(const ChainCost& chain, Executor executor, Limits limits)
      : chain_(chain), executor_(executor), limits_(limits) {
    if (chain.size() > kMostStages) {
      throw OptionError(fmt::format("cannot solve a chain of {} stages, {} are the most: the "
                                    "table grows with their square.",
                                    chain.size(), kMostStages),
                        "put several layers into one stage, or use policy::sqrt_n or "
                        "policy::binomial.");
    }
    limits_.budget -= chain.boundary(0);  // cells do not count the chain's input
    note_runs();
    note_gradients();
    const std::int64_t last = chain.size();
    cells_.resize(static_cast<std::size_t>((last + 1) * (last + 1)));
    for (std::int64_t length = 0; length <= last; ++length) {
      for (std::int64_t first = 0; first + length <= last; ++first) {
        if (first_like(first, first + length) == first) solve(first, first + length);
      }
    }
  }

  /// By rising peak and falling time. Empty if no plan is within the limits.
  [[nodiscard]] std::vector<Point> points() const {
    std::vector<Point> points;
    for (const Step& step : cell(0, chain_.size()).any)
      points.push_back({step.bytes + chain_.boundary(0), step.seconds});
    return points;
  }

  /// Throws `BudgetError` if there is none.
  [[nodiscard]] Segmentation plan(std::int64_t budget) const {
    const Steps& steps = cell(0, chain_.size()).any;
    const auto above =
        std::upper_bound(steps.begin(), steps.end(), budget - chain_.boundary(0),
                         [](std::int64_t bytes, const Step& step) { return bytes < step.bytes; });
    if (above == steps.begin()) {
      throw BudgetError(fmt::format("no plan fits {} bytes.", budget),
                        steps.empty() ? std::string("no plan is within the limits of the solve.")
                                      : fmt::format("the least peak is {} bytes.",
                                                    steps[0].bytes + chain_.boundary(0)));
    }
    return {chain_.size(), rest(0, static_cast<std::size_t>(above - steps.begin()) - 1)};
  }

  /// How many plans there are of the stages from `first` on that no other beats, the loss with
  /// them.
  [[nodiscard]] std::size_t rests(std::int64_t first) const {
    return cell(first, chain_.size()).any.size();
  }
  /// One of them. They are in order, by rising peak and falling time.
  [[nodiscard]] std::vector<SegmentNode> rest(std::int64_t first, std::size_t index) const {
    std::vector<SegmentNode> nodes;
    extract(first, chain_.size(), index, Rest::Any, nodes);
    return nodes;
  }

 private:
  static constexpr std::int64_t kMostStages = 4096;  // 0.8 GB of cells

  /// Which plans a step goes on with: all, or those that run their first stage plainly.
  enum class Rest : std::int32_t { Any, Plain };

  /// From so many bytes on it takes so many seconds: by running the first stage in one of its ways,
  /// or by replaying the first `split` stages. The bytes count the gradient of the last result, but
  /// neither the first stage's input nor what stages after the last leave behind.
  struct Step {
    std::int64_t bytes;
    double seconds;
    std::int32_t split;  ///< Or else minus the option.
    std::uint32_t left;
    std::uint32_t right;
    Rest rest = Rest::Any;
  };
  using Steps = std::vector<Step>;  // by rising bytes and falling seconds

  /// All plans of some stages, and those that run the first of them plainly: its input may go.
  struct Cell {
    Steps any;
    Steps plain;  ///< Empty where that stage saves its input.
  };
  [[nodiscard]] const Steps& steps(std::int64_t first, std::int64_t last, Rest rest) const {
    const Cell& all = cell(first, last);
    return rest == Rest::Any ? all.any : all.plain;
  }

  /// Stages that cost the same, one after the other, are a run: a cell within it depends on its
  /// length alone.
  void note_runs() {
    for (std::int64_t i = 0; i < chain_.size(); ++i) {
      const bool goes_on = i > 0 && alike(chain_[i - 1], chain_[i]);
      run_begin_.push_back(goes_on ? run_begin_.back() : i);
    }
    run_begin_.push_back(chain_.size());
  }

  static bool alike(const StageCost& a, const StageCost& b) {
    if (a.input != b.input || a.output != b.output || b.input != b.output) return false;
    StageCost named = a;
    named.name = b.name;
    return named == b;
  }

  /// The first cell of the same length that has the same steps.
  [[nodiscard]] std::int64_t first_like(std::int64_t first, std::int64_t last) const {
    const std::int64_t begin = run_begin_[static_cast<std::size_t>(first)];
    return begin == run_begin_[static_cast<std::size_t>(last)] ? begin : first;
  }

  void note_gradients() {
    gradients_from_.assign(static_cast<std::size_t>(chain_.size() + 2), 0);
    std::int64_t sum = chain_.held;
    for (std::int64_t i = chain_.size(); i >= 0; --i) {
      if (i < chain_.size()) sum += chain_[i].gradients;
      gradients_from_[static_cast<std::size_t>(i)] = sum;
    }
  }

  /// What the backwards of the stages `begin` to `last`, the loss among them, leave behind.
  [[nodiscard]] std::int64_t left_behind(std::int64_t begin, std::int64_t last) const {
    return gradients_from_[static_cast<std::size_t>(begin)] -
           gradients_from_[static_cast<std::size_t>(last + 1)];
  }

  [[nodiscard]] std::size_t place(std::int64_t first, std::int64_t last) const {
    return static_cast<std::size_t>(first_like(first, last) * (chain_.size() + 1) + (last - first));
  }
  [[nodiscard]] const Cell& cell(std::int64_t first, std::int64_t last) const {
    return cells_[place(first, last)];
  }

  /// The loss is the stage after the last.
  [[nodiscard]] std::int64_t boundary(std::int64_t i) const {
    return i > chain_.size() ? 0 : chain_.boundary(i);
  }

  void solve(std::int64_t first, std::int64_t last) {
    Steps best;
    Steps plain;
    if (first == chain_.size()) {
      add(best, {{chain_.loss_peak, chain_.loss, 0, 0, 0}});
    } else {
      // Any other cell is the inside of a replay.
      const std::int64_t ways = last == chain_.size() ? chain_[first].ways() : 1;
      for (std::int64_t option = 0; option < ways; ++option) {
        Steps way = first_in(option, first, last);
        add(best, way);
        if (option == 0 && chain_[first].input_unsaved > 0) plain = std::move(way);
      }
    }
    if (first < last) {
      std::int64_t sweep = boundary_held(last + 1) + chain_[first].nograd_peak;
      double forwards = chain_[first].nograd_forward;
      for (std::int64_t split = first + 1; split <= last; ++split) {
        replay_up_to(first, split, last, sweep, forwards, best);
        if (split == last) break;
        const StageCost& next = chain_[split];
        sweep = std::max(sweep, boundary_held(last + 1) + next.input + next.nograd_peak);
        forwards += next.nograd_forward;
      }
    }
    thin_out(best);
    thin_out(plain);
    cells_[place(first, last)] = {std::move(best), std::move(plain)};
  }

  /// Bytes of the gradient behind a cell, where the cell's own account holds it.
  [[nodiscard]] std::int64_t boundary_held(std::int64_t i) const {
    return executor_ == Executor::Nested ? 0 : boundary(i);
  }

  /// The plans that run the first stage in this way.
  [[nodiscard]] Steps first_in(std::int64_t option, std::int64_t first, std::int64_t last) {
    const GradRun& how = chain_[first].way(option);
    const double seconds = how.forward + how.backward;
    const std::int64_t need = need_of(first, last, how);
    const auto mark = static_cast<std::int32_t>(-option);
    if (first == last) {
      scratch_.clear();
      push({need, seconds, mark, 0, 0});
      return scratch_;
    }
    Steps way;
    const auto go_on = [&](Rest kind, std::int64_t gone) {
      const Steps& rest = steps(first + 1, last, kind);
      scratch_.clear();
      for (std::size_t i = 0; i < rest.size(); ++i) {
        const std::int64_t bytes =
            std::max(rest[i].bytes - gone, until_gone(first + 1, last, gone));
        push({std::max(need, bytes + how.saved), rest[i].seconds + seconds, mark, 0,
              static_cast<std::uint32_t>(i), kind});
      }
      add(way, scratch_);
    };
    go_on(Rest::Any, 0);
    if (option == 0 && first + 1 < chain_.size()) {
      const std::int64_t gone =
          gone_after(first + 1, last, chain_[first + 1].input_saved_by_nobody);
      if (gone > 0) go_on(Rest::Plain, gone);
    }
    return way;
  }

  /// A replay that ends with this very stage goes backward at once: nothing goes before.
  [[nodiscard]] std::int64_t gone_after(std::int64_t stage, std::int64_t last,
                                        std::int64_t bytes) const {
    return executor_ == Executor::Hooks && stage == last ? 0 : bytes;
  }

  /// What a plan that begins with a stage run plainly needs before that stage's input is gone.
  [[nodiscard]] std::int64_t until_gone(std::int64_t stage, std::int64_t last,
                                        std::int64_t gone) const {
    if (gone == 0) return 0;
    const GradRun& how = chain_[stage].plain;
    return boundary_held(last + 1) + std::max(how.forward_peak, how.saved);
  }

  [[nodiscard]] std::int64_t need_of(std::int64_t first, std::int64_t last,
                                     const GradRun& how) const {
    // A replay of the last stage runs backward at once.
    if (first == last && executor_ == Executor::Hooks) return how.replay_peak;
    std::int64_t backward = how.backward_peak_with_gradient;
    if (executor_ == Executor::Flat) backward = boundary(first + 1) + how.backward_peak;
    if (executor_ == Executor::Nested && first == last) backward = how.backward_peak;
    return std::max(boundary_held(last + 1) + how.forward_peak,
                    backward + left_behind(first + 1, last));
  }

  void replay_up_to(std::int64_t first, std::int64_t split, std::int64_t last, std::int64_t need,
                    double forwards, Steps& best) {
    merge(first, split, last, need, forwards, Rest::Any, 0, best);
    if (split == chain_.size()) return;
    const std::int64_t gone = gone_after(split, last, chain_[split].input_unsaved);
    if (gone > 0) merge(first, split, last, need, forwards, Rest::Plain, gone, best);
  }

  void merge(std::int64_t first, std::int64_t split, std::int64_t last, std::int64_t need,
             double forwards, Rest kind, std::int64_t gone, Steps& best) {
    const Steps& left = cell(first, split - 1).any;
    const Steps right = eased(split, last, kind, gone);
    if (left.empty() || right.empty()) return;
    const std::int64_t right_more = boundary(split);
    const std::int64_t left_more =
        left_behind(split, last) + (executor_ == Executor::Nested ? boundary(split) : 0);
    const double seconds = forwards - chain_[split - 1].tail;
    std::size_t l = 0;
    std::size_t r = 0;
    std::int64_t bytes = std::max({need, left[0].bytes + left_more, right[0].bytes + right_more});
    scratch_.clear();
    while (true) {
      while (l + 1 < left.size() && left[l + 1].bytes + left_more <= bytes) ++l;
      while (r + 1 < right.size() && right[r + 1].bytes + right_more <= bytes) ++r;
      push({bytes, left[l].seconds + right[r].seconds + seconds,
            static_cast<std::int32_t>(split - first), static_cast<std::uint32_t>(l), right[r].right,
            kind});
      bytes = std::numeric_limits<std::int64_t>::max();
      if (l + 1 < left.size()) bytes = left[l + 1].bytes + left_more;
      if (r + 1 < right.size()) bytes = std::min(bytes, right[r + 1].bytes + right_more);
      if (bytes > limits_.budget) break;
      if (l + 1 == left.size() && r + 1 == right.size()) break;
    }
    add(best, scratch_);
  }

  /// The steps of a cell with less to hold, each with its own number as `right`.
  [[nodiscard]] Steps eased(std::int64_t first, std::int64_t last, Rest kind,
                            std::int64_t gone) const {
    Steps eased;
    const Steps& rest = steps(first, last, kind);
    for (std::size_t i = 0; i < rest.size(); ++i) {
      Step step = rest[i];
      step.bytes = std::max(step.bytes - gone, until_gone(first, last, gone));
      step.right = static_cast<std::uint32_t>(i);
      if (!eased.empty() && eased.back().bytes == step.bytes) eased.pop_back();
      eased.push_back(step);
    }
    return eased;
  }

  void push(const Step& step) {
    if (step.bytes > limits_.budget) return;
    if (!scratch_.empty() && scratch_.back().bytes == step.bytes) scratch_.pop_back();
    scratch_.push_back(step);
  }

  /// The lower of two staircases.
  void add(Steps& best, const Steps& more) {
    if (more.empty()) return;
    merged_.clear();
    double lowest = std::numeric_limits<double>::infinity();
    auto a = best.begin();
    auto b = more.begin();
    while (a != best.end() || b != more.end()) {
      const bool from_a = b == more.end() ||
                          (a != best.end() && (a->bytes < b->bytes ||
                                               (a->bytes == b->bytes && a->seconds <= b->seconds)));
      const Step& step = from_a ? *a++ : *b++;
      if (step.seconds >= lowest) continue;
      lowest = step.seconds;
      merged_.push_back(step);
    }
    std::swap(best, merged_);
  }

  void thin_out(Steps& steps) const {
    const std::size_t most = std::max<std::size_t>(limits_.longest_list, 2);
    if (steps.size() <= most) return;
    Steps kept;
    kept.reserve(most);
    for (std::size_t i = 0; i < most; ++i)
      kept.push_back(steps[i * (steps.size() - 1) / (most - 1)]);
    steps = std::move(kept);
  }

  /// Appends the plan of one step of a cell. The loss is no part of it.
  void extract(std::int64_t first, std::int64_t last, std::size_t index, Rest rest,
               std::vector<SegmentNode>& nodes) const {
    while (first < chain_.size()) {
      const Step& step = steps(first, last, rest)[index];
      if (step.split <= 0) {
        if (!nodes.empty() && !nodes.back().replayed && nodes.back().option == -step.split) {
          ++nodes.back().range.end;
        } else {
          nodes.push_back({{first, first + 1}, false, {}, -step.split});
        }
        if (first++ == last) return;
      } else {
        const std::int64_t split = first + step.split;
        SegmentNode node{{first, split}, true};
        extract(first, split - 1, step.left, Rest::Any, node.inside);
        if (node.inside == std::vector<SegmentNode>{{node.range, false}}) node.inside.clear();
        nodes.push_back(std::move(node));
        first = split;
      }
      index = step.right;
      rest = step.rest;
    }
  }

  ChainCost chain_;
  Executor executor_;
  Limits limits_;
  std::vector<std::int64_t> run_begin_;       ///< Of the run that each stage lies in.
  std::vector<std::int64_t> gradients_from_;  ///< What all stages from each on leave behind.
  std::vector<Cell> cells_;
  Steps scratch_;
  Steps merged_;
};

}  // namespace refrain::planner
