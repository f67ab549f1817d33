// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace refrain {

/// A stage run in grad mode: what it keeps for its backward, and what that costs.
///
/// Bytes are counted beyond the stage's input. Times are in seconds.
struct GradRun {
  double forward = 0;              ///< Seconds of the forward with grad.
  double backward = 0;             ///< Seconds of the backward.
  std::int64_t saved = 0;          ///< What the forward leaves behind, its output included.
  std::int64_t forward_peak = 0;   ///< While the forward runs.
  std::int64_t backward_peak = 0;  ///< While the backward runs, the output's gradient not counted.
  /// The same where the engine alone holds the output's gradient, and counted.
  std::int64_t backward_peak_with_gradient = 0;
  /// While the stage, the last of a region, is replayed and run backward, the output's gradient
  /// counted: the replay stops early and makes no output that nobody saves.
  std::int64_t replay_peak = 0;

  friend bool operator==(const GradRun&, const GradRun&) = default;
};

/// What one stage of a chain costs, by measurement.
struct StageCost {
  std::string name;
  std::int64_t input = 0;   ///< Bytes of its input, and of that input's gradient.
  std::int64_t output = 0;  ///< Bytes of its output, and of that output's gradient.
  /// Of its input, what the stage does not save when it runs plainly, and of that what the stage
  /// before it does not save either: bytes that go as soon as the stage has run, unless a region
  /// that begins there holds them.
  std::int64_t input_unsaved = 0;
  std::int64_t input_saved_by_nobody = 0;
  double nograd_forward = 0;
  std::int64_t nograd_peak = 0;
  /// What a replay that ends with this stage saves by stopping early, in seconds.
  double tail = 0;
  /// Bytes that its backward leaves behind: gradients of parameters that had none.
  std::int64_t gradients = 0;
  /// What a region over it keeps of its own, and once more while it is replayed: copies of the
  /// buffers that it writes.
  std::int64_t region_keeps = 0;
  GradRun plain;
  /// What `plain.saved` is by what autograd saves. Less, where the stage keeps memory in other
  /// ways.
  std::int64_t saved_tensors = 0;
  /// Other ways to run it: as a region that keeps some of it. Their `replay_peak` does not matter:
  /// no option is run inside a replay.
  std::vector<GradRun> options = {};

  /// How it runs in `option`: 0 is plainly.
  [[nodiscard]] const GradRun& way(std::int64_t option) const {
    return option == 0 ? plain : options[static_cast<std::size_t>(option - 1)];
  }
  [[nodiscard]] std::int64_t ways() const { return 1 + static_cast<std::int64_t>(options.size()); }

  friend bool operator==(const StageCost&, const StageCost&) = default;
};

/// A chain of stages, each of which takes what the one before it gives, and the loss after them.
struct ChainCost {
  std::vector<StageCost> stages;
  /// While the loss runs, beyond its input: the gradient that it makes, and temporaries.
  std::int64_t loss_peak = 0;
  double loss = 0;  ///< Seconds of the loss, forward and backward.
  /// Bytes that stay from the loss to the end of the step: the output, where the caller holds it.
  std::int64_t held = 0;

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(stages.size()); }
  [[nodiscard]] const StageCost& operator[](std::int64_t i) const {
    return stages[static_cast<std::size_t>(i)];
  }
  /// Bytes of the input of stage `i`; of the last output for `i == size()`, 0 if there is no stage.
  [[nodiscard]] std::int64_t boundary(std::int64_t i) const {
    if (i < size()) return (*this)[i].input;
    return stages.empty() ? 0 : stages.back().output;
  }

  friend bool operator==(const ChainCost&, const ChainCost&) = default;
};

}  // namespace refrain
