// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>
#include <refrain/segment.hpp>
#include <refrain/stage_cost.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace refrain {

/// Who runs a plan, which decides how long gradients at the borders of segments live.
enum class Executor {
  Hooks,   ///< `Route::Hooks`: autograd's own graph. The engine alone holds gradients, and a replay
           ///< stops early.
  Nested,  ///< `Route::Function`: calls inside calls. An outer segment's border holds its gradient
           ///< while it is replayed and run backward.
  Flat,    ///< One loop over all stages, as solvers from papers have it: an engine call a stage.
};

/// What a plan costs.
struct ScheduleCost {
  double seconds = 0;           ///< Of all forwards and backwards.
  std::int64_t peak = 0;        ///< Bytes, the chain's input included.
  std::int64_t forwards = 0;    ///< Of single stages, with grad or without.
  std::int64_t peak_stage = 0;  ///< Where the peak lies; the number of stages for the loss.

  friend bool operator==(const ScheduleCost&, const ScheduleCost&) = default;
};

namespace detail {

/// Who moves what is kept between forward and backward: nobody.
struct NothingMoves {
  /// Bytes that have left once the first run of a stage, or of a region that begins with it, is
  /// over.
  [[nodiscard]] static std::int64_t leave(std::int64_t /*stage*/, double /*computed*/) { return 0; }
  /// The backward of that stage or region begins: the change in bytes.
  [[nodiscard]] static std::int64_t fetch(std::int64_t /*stage*/, double /*computed*/) { return 0; }
};

/// Plays a schedule byte by byte. Knows nothing of how schedules are found.
template <class Mover = NothingMoves>
class ScheduleMachine {
 public:
  ScheduleMachine(const ChainCost& chain, Executor executor, Mover mover = {})
      : chain_(chain),
        executor_(executor),
        mover_(std::move(mover)),
        live_(chain.boundary(0)),
        gone_(static_cast<std::size_t>(chain.size() + 1)) {}

  ScheduleCost play(const std::vector<SegmentNode>& nodes) {
    forward(nodes, chain_.size(), Runs::First);
    touch(chain_.loss_peak, chain_.size());
    cost_.seconds += chain_.loss;
    live_ += chain_.held + gradient(chain_.size());
    backward(nodes, {.runs = Runs::First});
    return cost_;
  }
  [[nodiscard]] const Mover& mover() const { return mover_; }

 private:
  enum class Runs { First, Again };

  /// The end of a list of nodes that is run backward.
  struct End {
    bool pinned = false;         ///< The gradient of the last result is somebody else's and stays.
    std::int64_t replayed = -1;  ///< The last stage, if it is replayed and run backward in one.
    std::int64_t copies = 0;     ///< Of buffers, which go when it has been replayed.
    Runs runs = Runs::Again;     ///< Of what the first run has kept, or of a replay.
  };

  /// Stages from `end` on are not run, nor is a last segment whose result nobody would read.
  void forward(const std::vector<SegmentNode>& nodes, std::int64_t end, Runs runs) {
    const SegmentNode* before = nullptr;
    for (const SegmentNode& node : nodes) {
      if (node.replayed) {
        if (node.range.end <= end) {
          sweep(node.range);
          if (runs == Runs::First || executor_ == Executor::Hooks) live_ += kept_by_regions(node);
          if (runs == Runs::First) live_ += mover_.leave(node.range.begin, cost_.seconds);
        }
      } else {
        for (std::int64_t i = node.range.begin; i < std::min(node.range.end, end); ++i) {
          forward_plain(i, chain_[i].way(node.option));
          const SegmentNode* const maker = i > node.range.begin ? &node : before;
          if (maker != nullptr && node.option == 0 && maker->option == 0)
            let_go(i, maker->replayed);
          if (runs == Runs::First) live_ += mover_.leave(i, cost_.seconds);
        }
      }
      before = &node;
    }
  }

  /// Of the input of stage `i`, what nobody saves once the stage has run. A stage run in an option
  /// holds its input, and may hold its result.
  void let_go(std::int64_t i, bool after_region) {
    const std::int64_t bytes =
        after_region ? chain_[i].input_unsaved : chain_[i].input_saved_by_nobody;
    live_ -= bytes;
    gone_[static_cast<std::size_t>(i)] = bytes;
  }
  std::int64_t take_gone(std::int64_t i) {
    return std::exchange(gone_[static_cast<std::size_t>(i)], 0);
  }

  /// The copies that a region, and those inside it, keep until their backward is over.
  [[nodiscard]] std::int64_t kept_by_regions(const SegmentNode& node) const {
    std::int64_t bytes = own_copies(node.range);
    for (const SegmentNode& inside : node.inside)
      bytes += inside.replayed ? kept_by_regions(inside) : 0;
    return bytes;
  }
  /// Of the regions among `nodes` that a replay up to stage `end` calls.
  [[nodiscard]] std::int64_t copies_again(const std::vector<SegmentNode>& nodes,
                                          std::int64_t end) const {
    std::int64_t bytes = 0;
    for (const SegmentNode& node : nodes)
      bytes += node.replayed && node.range.end <= end ? kept_by_regions(node) : 0;
    return bytes;
  }
  [[nodiscard]] std::int64_t own_copies(Segment range) const {
    std::int64_t bytes = 0;
    for (std::int64_t i = range.begin; i < range.end; ++i) bytes += chain_[i].region_keeps;
    return bytes;
  }

  void forward_plain(std::int64_t i, const GradRun& how) {
    touch(how.forward_peak, i);
    allocate(how.saved, i);
    ran_forward(how.forward);
  }

  /// Keeps the input and the result alone.
  void sweep(Segment range) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      touch(chain_[i].nograd_peak, i);
      allocate(chain_[i].output, i);
      if (i > range.begin) live_ -= chain_[i].input;
      ran_forward(chain_[i].nograd_forward);
    }
  }

  void backward(const std::vector<SegmentNode>& nodes, End end) {
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      if (node->replayed) {
        // The result is dropped: who read it is done.
        if (node->range.end != end.replayed + 1)
          live_ -= chain_.boundary(node->range.end) - take_gone(node->range.end);
        fetch(node->range.begin, end.runs);
        backward_replayed(*node, end.pinned);
        end.pinned = false;
      } else {
        for (std::int64_t i = node->range.end; i-- > node->range.begin; end.pinned = false) {
          fetch(i, end.runs);
          backward_plain(i, chain_[i].way(node->option), end);
        }
      }
    }
  }

  void fetch(std::int64_t stage, Runs runs) {
    if (runs == Runs::Again) return;
    const std::int64_t bytes = mover_.fetch(stage, cost_.seconds);
    live_ += bytes;
    if (bytes > 0) touch(0, stage);
  }

  void backward_plain(std::int64_t i, const GradRun& how, End& end) {
    if (i == end.replayed) {
      live_ -= gradient(i + 1);
      touch(how.replay_peak, i);
      live_ -= std::exchange(end.copies, 0);
      ran_forward(how.forward);
    } else {
      live_ -= how.saved - take_gone(i + 1);
      const bool counted = executor_ == Executor::Flat || end.pinned;
      if (!counted) live_ -= gradient(i + 1);
      touch(counted ? how.backward_peak : how.backward_peak_with_gradient, i);
      if (counted && !end.pinned) live_ -= gradient(i + 1);
    }
    live_ += gradient(i) + chain_[i].gradients;
    cost_.seconds += how.backward;
  }

  void backward_replayed(const SegmentNode& node, bool pinned) {
    const Segment range = node.range;
    const std::vector<SegmentNode> whole = {{range, false}};
    const std::vector<SegmentNode>& inside = node.inside.empty() ? whole : node.inside;
    cost_.seconds -= chain_[range.end - 1].tail;
    const bool hooks = executor_ == Executor::Hooks;
    const bool nested = executor_ == Executor::Nested;
    const std::int64_t copies = own_copies(range);
    live_ += copies;
    forward(inside, hooks ? range.end - 1 : range.end, Runs::Again);
    // Of the regions that it calls: those of the first run still have theirs.
    const std::int64_t again = hooks ? copies_again(inside, range.end - 1) : 0;
    // The last stage's replay is still to come where its backward follows at once.
    const bool goes_on = hooks && !inside.back().replayed;
    if (!goes_on) live_ -= copies + again;
    backward(inside, hooks ? End{.replayed = range.end - 1, .copies = goes_on ? copies + again : 0}
                           : End{.pinned = nested || pinned});
    if (nested && !pinned) live_ -= gradient(range.end);
    live_ -= copies;  // inner regions have given theirs back
  }

  [[nodiscard]] std::int64_t gradient(std::int64_t i) const { return chain_.boundary(i); }

  void ran_forward(double seconds) {
    cost_.seconds += seconds;
    ++cost_.forwards;
  }
  void allocate(std::int64_t bytes, std::int64_t stage) {
    live_ += bytes;
    touch(0, stage);
  }
  void touch(std::int64_t more, std::int64_t stage) {
    if (live_ + more <= cost_.peak) return;
    cost_.peak = live_ + more;
    cost_.peak_stage = stage;
  }

  const ChainCost& chain_;
  Executor executor_;
  Mover mover_;
  std::int64_t live_;
  std::vector<std::int64_t> gone_;  ///< Of each boundary: bytes that nobody saved.
  ScheduleCost cost_;
};

/// Throws `PlanError` if a schedule is for another chain.
inline void check_stages(const Segmentation& cut, const ChainCost& chain) {
  if (cut.stages() == chain.size()) return;
  throw PlanError(fmt::format("a schedule of {} stages cannot be played on a chain of {}.",
                              cut.stages(), chain.size()),
                  fmt::format("got: {}", cut));
}

inline void check_options(const std::vector<SegmentNode>& nodes, const ChainCost& chain) {
  for (const SegmentNode& node : nodes) {
    check_options(node.inside, chain);
    for (std::int64_t i = node.range.begin; i < node.range.end; ++i) {
      if (node.option < chain[i].ways()) continue;
      throw PlanError(
          fmt::format("stage {} (`{}`) has no option {}.", i, chain[i].name, node.option),
          fmt::format("it has {}; 0 is to run it plainly.", chain[i].options.size()));
    }
  }
}

}  // namespace detail

/// What a schedule costs on a chain: the machine that judges every plan, whoever made it.
///
/// Throws `PlanError` if the schedule is for another number of stages, or runs an option that a
/// stage does not have. Time: the number of forwards
/// and backwards that it plays.
[[nodiscard]] inline ScheduleCost simulate(const Segmentation& cut, const ChainCost& chain,
                                           Executor executor = Executor::Hooks) {
  detail::check_stages(cut, chain);
  detail::check_options(cut.nodes(), chain);
  return detail::ScheduleMachine<>(chain, executor).play(cut.nodes());
}

}  // namespace refrain
