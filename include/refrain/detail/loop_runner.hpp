// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/forward_signature.hpp>
#include <refrain/detail/loop_types.hpp>
#include <refrain/detail/region.hpp>
#include <refrain/detail/segment_regions.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Runs the steps of a loop in its segments.
template <class Step, class State, class Input>
class LoopRunner {
 public:
  using Types = LoopTypes<Step, State, Input>;
  using Piece = typename Types::Piece;

  LoopRunner(std::shared_ptr<Step> step, std::shared_ptr<SegmentRegions> regions)
      : step_(std::move(step)), regions_(std::move(regions)) {}

  Piece run(State state, const std::vector<Input>& inputs) {
    return run(*regions_, std::move(state), inputs, 0);
  }

 private:
  /// The same; a step that changes itself when called is copied as it is now.
  [[nodiscard]] LoopRunner as_it_is() const {
    if constexpr (!Types::kStepIsConst) {
      return {std::make_shared<Step>(*step_), regions_};
    } else {
      return *this;
    }
  }

  /// What the region of a segment calls. It owns what it needs: the frame may outlive the loop.
  struct Callee {
    LoopRunner runner;
    SegmentRegion* region;

    Piece operator()(State state, const std::vector<Input>& inputs) {
      if (region->inside.empty())
        return runner.run_plainly(std::move(state), inputs, 0, inputs.size());
      return runner.run(region->inside, std::move(state), inputs, region->range.begin);
    }
    [[nodiscard]] Callee kept() const { return {runner.as_it_is(), region}; }
    [[nodiscard]] Callee for_replay() const { return {runner.as_it_is(), region}; }
  };

  /// `inputs` begin with that of step `first`.
  Piece run(SegmentRegions& regions, State state, const std::vector<Input>& inputs,
            std::int64_t first) {
    Piece whole{std::move(state)};
    for (SegmentRegion& region : regions) {
      const auto begin = static_cast<std::size_t>(region.range.begin - first);
      const auto end = static_cast<std::size_t>(region.range.end - first);
      if (region.settings == nullptr || !regions_are_on()) {
        whole.append(run_plainly(std::move(whole.state), inputs, begin, end));
        continue;
      }
      const auto at = [&](std::size_t i) {
        return inputs.begin() + static_cast<std::ptrdiff_t>(i);
      };
      whole.append(call_region(region.settings, Callee{*this, &region}, nullptr,
                               std::move(whole.state), std::vector<Input>(at(begin), at(end))));
    }
    return whole;
  }

  Piece run_plainly(State state, const std::vector<Input>& inputs, std::size_t begin,
                    std::size_t end) {
    Piece whole{std::move(state)};
    for (std::size_t i = begin; i < end; ++i)
      whole.add(call_thing(*step_, std::move(whole.state), inputs[i]));
    return whole;
  }

  std::shared_ptr<Step> step_;
  std::shared_ptr<SegmentRegions> regions_;
};

}  // namespace refrain::detail
