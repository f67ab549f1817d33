// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/policy.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace support {

/// Runs a segmentation of equal stages on paper, forward and backward. A boundary and its gradient
/// take one unit, a stage run with grad leaves `internals` units behind, its result included.
class ChainMachine {
 public:
  ChainMachine(const refrain::Segmentation& cut, std::int64_t internals) : internals_(internals) {
    forward(cut.nodes());
    hold(1);  // the gradient that the loss sends
    backward(cut.nodes());
  }

  [[nodiscard]] std::int64_t peak() const { return peak_; }
  /// Runs of a stage beyond the one that each needs.
  [[nodiscard]] std::int64_t extra_runs() const { return extra_runs_; }

 private:
  using Nodes = std::vector<refrain::SegmentNode>;

  void hold(std::int64_t units) { peak_ = std::max(peak_, live_ += units); }
  void drop(std::int64_t units) { live_ -= units; }

  void forward(const Nodes& nodes) {
    for (const auto& node : nodes) {
      if (node.replayed) {
        forget(node.range);
      } else {
        for (auto i = node.range.begin; i < node.range.end; ++i) hold(internals_);
      }
    }
  }

  /// Without grad a stage's input lives until its result is there; the first input is kept.
  void forget(const refrain::Segment& range) {
    for (auto i = range.begin; i < range.end; ++i) {
      hold(1);
      if (i > range.begin) drop(1);
    }
  }

  void backward(const Nodes& nodes) {
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      node->replayed ? replay(*node) : backward(node->range);
    }
  }

  void replay(const refrain::SegmentNode& node) {
    drop(1);  // what the forgotten run returned
    extra_runs_ += node.range.size();
    const Nodes inside = node.inside.empty() ? Nodes{{node.range, false}} : node.inside;
    forward(inside);
    backward(inside);
  }

  void backward(const refrain::Segment& range) {
    for (auto i = range.begin; i < range.end; ++i) {
      hold(1);  // the gradient of the stage's input
      drop(internals_ + 1);
    }
  }

  std::int64_t internals_;
  std::int64_t live_ = 1;  // the chain's input
  std::int64_t peak_ = 1;
  std::int64_t extra_runs_ = 0;
};

}  // namespace support
