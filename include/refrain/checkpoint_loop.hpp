// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/loop_runner.hpp>
#include <refrain/detail/open_loop_runner.hpp>
#include <refrain/detail/segment_regions.hpp>
#include <refrain/error.hpp>
#include <refrain/options.hpp>
#include <refrain/policy.hpp>

#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace refrain {
namespace detail {

/// The regions of `steps` steps that `policy` cuts.
template <class Step>
std::shared_ptr<SegmentRegions> loop_regions(const policy::AnyPolicy& policy, std::size_t steps,
                                             Tail tail, const CheckpointOptions& options) {
  Chain chain;
  chain.tail = tail;
  for (std::size_t i = 0; i < steps; ++i)
    chain.stages.push_back({std::to_string(i), "step", typeid(Step)});
  return make_regions(policy.cut(chain), options.name().empty() ? "loop" : options.name(), options);
}

/// After how many steps a policy cuts alike again.
inline std::size_t loop_period(const policy::AnyPolicy& policy) {
  const auto period = policy.period();
  if (period && *period > 0) return static_cast<std::size_t>(*period);
  throw OptionError(
      fmt::format("checkpoint_loop: policy::{} must know how many steps there are, and nobody does "
                  "before this loop ends.",
                  policy),
      "cut it period by period: policy::every(k), or policy::nested(policy::every(k), ...).");
}

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
  detail::LoopRunner<Step, State, Input> runner(
      std::make_shared<Step>(std::move(step)),
      detail::loop_regions<Step>(policy, inputs.size(), Tail::Loss, options));
  return runner.run(std::move(state), inputs).result();
}

template <class Step, class State>
[[nodiscard]] auto checkpoint_loop(Step step, State state, const at::Tensor& inputs,
                                   const policy::AnyPolicy& policy,
                                   const CheckpointOptions& options = {}) {
  return checkpoint_loop(std::move(step), std::move(state), inputs.unbind(0), policy, options);
}

/// The same for a loop whose length nobody knows ahead: `next` says before each step whether there
/// is one, by a bool, or by an `std::optional` input. It is called with the state, or with nothing.
///
///     auto x = refrain::checkpoint_loop(
///         [f](Tensor x) { return f(x); }, x0,                          // while (...) x = f(x);
///         [](const Tensor& x) { return x.norm().item<float>() > 1e-3; },
///         policy::nested(policy::every(64), policy::binomial(8)));
///
/// `next` runs once a step and never in a replay, so it may read a file or count; an input that it
/// gives is kept. On `Route::Function` it may not give one that needs a gradient.
///
/// The policy must cut alike again and again: `every(k)`, `all()`, `one_in(k)`, and `nested` of
/// these. Memory of n steps: n/k states, and what the replay of k steps keeps. Throws `OptionError`
/// for another policy.
template <class Step, class State, class Next>
  requires detail::AsksForMore<Next, State>
[[nodiscard]] auto checkpoint_loop(Step step, State state, Next next,
                                   const policy::AnyPolicy& policy,
                                   const CheckpointOptions& options = {}) {
  detail::OpenLoopRunner<Step, State, Next> runner(
      std::make_shared<Step>(std::move(step)), std::make_shared<Next>(std::move(next)),
      detail::loop_regions<Step>(policy, detail::loop_period(policy), Tail::More, options));
  return runner.run(std::move(state)).result();
}

}  // namespace refrain
