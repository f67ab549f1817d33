// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/stage_cost.hpp>

#include <algorithm>
#include <cstdint>
#include <random>

namespace support {

/// Stages as no formula ties them together: peaks, tensors that nobody saves, memory that is not
/// autograd's. Each with so many options.
inline refrain::ChainCost random_chain(std::mt19937& random, std::int64_t stages,
                                       std::int64_t options = 0) {
  const auto up_to = [&random](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(random);
  };
  refrain::ChainCost chain;
  std::int64_t input = 1 + up_to(8);
  for (std::int64_t i = 0; i < stages; ++i) {
    refrain::StageCost stage;
    stage.input = input;
    stage.output = input = 1 + up_to(8);
    stage.input_unsaved = up_to(1) * up_to(stage.input);
    stage.input_saved_by_nobody = up_to(stage.input_unsaved);
    stage.nograd_forward = static_cast<double>(1 + up_to(9));
    stage.nograd_peak = stage.output + up_to(5);
    stage.tail = static_cast<double>(up_to(1));
    stage.gradients = up_to(1) * up_to(3);
    refrain::GradRun& run = stage.plain;
    run.forward = stage.nograd_forward;
    run.backward = 2 * run.forward;
    run.saved = stage.output + up_to(30);
    run.forward_peak = run.saved + up_to(5);
    run.backward_peak = run.saved + stage.input + stage.gradients + up_to(5);
    run.backward_peak_with_gradient = run.backward_peak + stage.output;
    run.replay_peak = run.backward_peak_with_gradient;
    stage.saved_tensors = run.saved - up_to(1) * up_to(3);
    for (std::int64_t k = 0; k < options; ++k) {
      refrain::GradRun option = run;
      option.saved = stage.output + up_to(run.saved - stage.output);
      option.backward += static_cast<double>(1 + up_to(9)) / 4;
      stage.options.push_back(option);
    }
    chain.stages.push_back(stage);
  }
  chain.loss_peak = input;
  chain.loss = 1;
  return chain;
}

}  // namespace support
