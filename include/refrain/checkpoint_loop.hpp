// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/forward_signature.hpp>
#include <refrain/detail/segment_regions.hpp>
#include <refrain/options.hpp>
#include <refrain/policy.hpp>

#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace refrain {
namespace detail {

/// The outputs of some steps in a row, of a step that gives `Given`: the next state, or a pair of
/// that and an output.
template <class Given, class State>
struct LoopOutputs {
  static_assert(std::same_as<Given, State>,
                "refrain: a loop's step gives its next state, or a pair of that and an output");
  using type = std::tuple<>;
};
template <class State, class Output>
struct LoopOutputs<std::pair<State, Output>, State> {
  using type = std::vector<Output>;
};
template <class State, class Output>
struct LoopOutputs<std::tuple<State, Output>, State> {
  using type = std::vector<Output>;
};

template <class Step, class State, class Input>
struct LoopTypes {
  using Given = std::decay_t<decltype(call_thing(std::declval<Step&>(), std::declval<State>(),
                                                 std::declval<const Input&>()))>;
  using Outputs = typename LoopOutputs<Given, State>::type;
  static constexpr bool kGivesOutputs = !std::same_as<Given, State>;

  struct Piece {
    State state;
    Outputs outputs = {};

    template <class Visit>
    friend void visit_tensors(Piece& piece, Visit&& visit) {
      visit(piece.state);
      visit(piece.outputs);
    }
  };
};

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
    if constexpr (!std::invocable<const Step&, State, const Input&>) {
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
        append(whole, run_plainly(std::move(whole.state), inputs, begin, end));
        continue;
      }
      const auto at = [&](std::size_t i) {
        return inputs.begin() + static_cast<std::ptrdiff_t>(i);
      };
      append(whole, call_region(region.settings, Callee{*this, &region}, nullptr,
                                std::move(whole.state), std::vector<Input>(at(begin), at(end))));
    }
    return whole;
  }

  Piece run_plainly(State state, const std::vector<Input>& inputs, std::size_t begin,
                    std::size_t end) {
    Piece whole{std::move(state)};
    for (std::size_t i = begin; i < end; ++i) {
      if constexpr (Types::kGivesOutputs) {
        auto [next, output] = call_thing(*step_, std::move(whole.state), inputs[i]);
        whole.state = std::move(next);
        whole.outputs.push_back(std::move(output));
      } else {
        whole.state = call_thing(*step_, std::move(whole.state), inputs[i]);
      }
    }
    return whole;
  }

  static void append(Piece& whole, Piece piece) {
    whole.state = std::move(piece.state);
    if constexpr (Types::kGivesOutputs) {
      for (auto& output : piece.outputs) whole.outputs.push_back(std::move(output));
    }
  }

  std::shared_ptr<Step> step_;
  std::shared_ptr<SegmentRegions> regions_;
};

}  // namespace detail

/// Runs `state = step(state, inputs[t])` for each t, in segments that are forgotten and replayed:
/// backpropagation through many steps in the memory of a few.
///
///     auto h = refrain::checkpoint_loop(
///         [cell](Tensor h, Tensor x) mutable { return cell(x, h); }, h0, inputs,
///         refrain::policy::segments(50));
///
/// A step that gives `std::pair(state, output)` makes the loop give `std::pair(state,
/// std::vector(outputs))`. A state is a tensor or anything whose tensors can be found; `inputs` is
/// a `std::vector`, or a tensor with the steps in its first dimension. A `mutable` step is copied
/// for each segment, and its replay starts from that copy.
///
/// Memory of n steps: `segments(k)` keeps k states and the activations of n/k steps at a time,
/// `binomial(k)` k states and the activations of one step. Time: one more forward for `segments`;
/// for `binomial(k)` see `planner::binomial_extra_forwards(n, k)`. Throws `OptionError` or
/// `PlanError` if the policy cannot cut that many steps.
template <class Step, class State, class Input>
[[nodiscard]] auto checkpoint_loop(Step step, State state, const std::vector<Input>& inputs,
                                   const policy::AnyPolicy& policy,
                                   const CheckpointOptions& options = {}) {
  using Runner = detail::LoopRunner<Step, State, Input>;
  Chain chain;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    chain.stages.push_back({std::to_string(i), "step", typeid(Step)});
  const std::string name = options.name().empty() ? "loop" : options.name();
  Runner runner(std::make_shared<Step>(std::move(step)),
                detail::make_regions(policy.cut(chain), name, options));
  auto piece = runner.run(std::move(state), inputs);
  if constexpr (Runner::Types::kGivesOutputs) {
    return std::pair(std::move(piece.state), std::move(piece.outputs));
  } else {
    return std::move(piece.state);
  }
}

template <class Step, class State>
[[nodiscard]] auto checkpoint_loop(Step step, State state, const at::Tensor& inputs,
                                   const policy::AnyPolicy& policy,
                                   const CheckpointOptions& options = {}) {
  return checkpoint_loop(std::move(step), std::move(state), inputs.unbind(0), policy, options);
}

}  // namespace refrain
