// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/footprint.hpp>
#include <refrain/detail/outside_state.hpp>
#include <refrain/detail/random_state.hpp>
#include <refrain/detail/surroundings.hpp>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <vector>

namespace refrain::detail {

/// Leaves everything as it was: random generators, and what the code wrote outside itself.
class StepUndone {
 public:
  explicit StepUndone(const std::vector<at::Generator>& extra)
      : generators_(random_states(extra)),
        footprint_("profile", none_, Footprint::TrackedWrites::LetPass) {}
  StepUndone(const StepUndone&) = delete;
  StepUndone& operator=(const StepUndone&) = delete;
  ~StepUndone() {
    std::vector<OutsideWrite> writes = footprint_.writes();
    undo(writes);
    for (RandomState& generator : generators_) generator.restore();
  }

  /// What is written while this lives will be undone, and what is written there later.
  [[nodiscard]] Footprint& footprint() { return footprint_; }

 private:
  std::vector<RandomState> generators_;
  const std::vector<at::Tensor> none_;
  Footprint footprint_;
};

}  // namespace refrain::detail
