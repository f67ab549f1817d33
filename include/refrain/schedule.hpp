// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>
#include <refrain/segment.hpp>
#include <refrain/stage_cost.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <vector>

namespace refrain {

/// Who runs a plan, which decides how long gradients at the borders of segments live.
enum class Executor {
  Flat,    ///< Lets a border's gradient go as soon as it is consumed.
  Nested,  ///< Calls inside calls: an outer segment's border holds its gradient while it is
           ///< replayed and run backward.
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

/// Plays a schedule byte by byte. Knows nothing of how schedules are found.
class ScheduleMachine {
 public:
  ScheduleMachine(const ChainCost& chain, Executor executor)
      : chain_(chain), executor_(executor), live_(chain.boundary(0)) {}

  ScheduleCost play(const Segmentation& cut) {
    forward(cut.nodes());
    touch(chain_.loss_peak, chain_.size());
    cost_.seconds += chain_.loss;
    allocate(gradient(chain_.size()), chain_.size());
    backward(cut.nodes(), /*pinned=*/false);
    return cost_;
  }

 private:
  void forward(const std::vector<SegmentNode>& nodes) {
    for (const SegmentNode& node : nodes) {
      if (!node.replayed) {
        forward_plain(node.range);
      } else {
        sweep(node.range);
      }
    }
  }

  void forward_plain(Segment range) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const GradRun& how = chain_[i].plain;
      touch(how.forward_peak, i);
      allocate(how.saved, i);
      cost_.seconds += how.forward;
      ++cost_.forwards;
    }
  }

  /// Keeps the input and the result alone.
  void sweep(Segment range) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      touch(chain_[i].nograd_peak, i);
      allocate(chain_[i].output, i);
      if (i > range.begin) live_ -= chain_[i].input;
      cost_.seconds += chain_[i].nograd_forward;
      ++cost_.forwards;
    }
  }

  /// `pinned`: the gradient of the last result is somebody else's and stays.
  void backward(const std::vector<SegmentNode>& nodes, bool pinned) {
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      if (node->replayed) {
        backward_replayed(*node, pinned);
      } else {
        for (std::int64_t i = node->range.end; i-- > node->range.begin; pinned = false)
          backward_plain(i, pinned);
      }
      pinned = false;
    }
  }

  void backward_plain(std::int64_t i, bool pinned) {
    const GradRun& how = chain_[i].plain;
    live_ -= how.saved;
    if (executor_ == Executor::Nested && !pinned) {
      live_ -= gradient(i + 1);
      touch(how.backward_peak_with_gradient, i);
    } else {
      touch(how.backward_peak, i);
      if (!pinned) live_ -= gradient(i + 1);
    }
    allocate(gradient(i), i);
    cost_.seconds += how.backward;
  }

  void backward_replayed(const SegmentNode& node, bool pinned) {
    const Segment range = node.range;
    live_ -= chain_.boundary(range.end);  // the result: who read it is done
    const std::vector<SegmentNode> whole = {{range, false}};
    const std::vector<SegmentNode>& inside = node.inside.empty() ? whole : node.inside;
    forward(inside);
    cost_.seconds -= chain_[range.end - 1].tail;
    const bool nested = executor_ == Executor::Nested;
    backward(inside, nested || pinned);
    if (nested && !pinned) live_ -= gradient(range.end);
  }

  [[nodiscard]] std::int64_t gradient(std::int64_t i) const { return chain_.boundary(i); }

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
  std::int64_t live_;
  ScheduleCost cost_;
};

}  // namespace detail

/// What a schedule costs on a chain: the machine that judges every plan, whoever made it.
///
/// Throws `PlanError` if the schedule is for another number of stages. Time: the number of forwards
/// and backwards that it plays.
[[nodiscard]] inline ScheduleCost simulate(const Segmentation& cut, const ChainCost& chain,
                                           Executor executor = Executor::Flat) {
  if (cut.stages() != chain.size()) {
    throw PlanError(fmt::format("a schedule of {} stages cannot be played on a chain of {}.",
                                cut.stages(), chain.size()),
                    fmt::format("got: {}", cut));
  }
  return detail::ScheduleMachine(chain, executor).play(cut);
}

}  // namespace refrain
