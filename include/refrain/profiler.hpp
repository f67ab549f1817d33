// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/checkpoint_layers.hpp>
#include <refrain/checkpoint_sequential.hpp>
#include <refrain/detail/chain_profiler.hpp>
#include <refrain/profile.hpp>
#include <refrain/profile_options.hpp>
#include <refrain/signature.hpp>

#include <torch/nn/modules/container/sequential.h>

#include <type_traits>
#include <vector>

namespace refrain {

/// Measures what each layer of a chain keeps, takes at most and costs in time, forward, backward
/// and as a region: what `plan(profile, budget)` needs to know.
///
///     auto profile = refrain::profile(layers, x);
///     fmt::print("{}\n", profile);
///
/// `layers` is a `Sequential` or a `std::vector` of blocks or functions, wrapped or not, and the
/// inputs are those of its call, as they come in training: values, dtypes, `requires_grad`.
/// Call it when the optimizer's state exists, after a first step, so that it is counted as
/// resident. Random generators, buffers and gradients come back as they were. On the CPU it needs
/// `count_cpu_memory()`; throws `Error` without, and `OptionError` for a chain without layers.
///
/// Time: each layer about 30 ms and at least 5 times in each way. Memory: the chain's inputs one at
/// a time, and what one layer takes.
template <class... Inputs>
[[nodiscard]] Profile profile(const ProfileOptions& options, const torch::nn::Sequential& layers,
                              const Inputs&... inputs) {
  return detail::ChainProfiler(options, detail::chain_of(layers.ptr(), inputs...)).run();
}

template <class... Inputs>
[[nodiscard]] Profile profile(const ProfileOptions& options, const CheckpointSequential& layers,
                              const Inputs&... inputs) {
  return detail::ChainProfiler(options, detail::chain_of(layers->inner(), inputs...)).run();
}

template <class Layer, class Value, class... Extras>
[[nodiscard]] Profile profile(const ProfileOptions& options, const std::vector<Layer>& layers,
                              const Value& value, const Extras&... extras) {
  return detail::ChainProfiler(options, detail::chain_of(layers, value, extras...)).run();
}

template <class Layer, class... Inputs>
[[nodiscard]] Profile profile(const ProfileOptions& options, const CheckpointLayers<Layer>& layers,
                              const Inputs&... inputs) {
  return profile(options, layers.layers(), inputs...);
}

/// As above, with the defaults of `ProfileOptions`.
template <class Layers, class... Inputs>
  requires(!std::is_same_v<Layers, ProfileOptions>)
[[nodiscard]] Profile profile(const Layers& layers, const Inputs&... inputs) {
  return profile(ProfileOptions(), layers, inputs...);
}

/// What this chain and its inputs look like: `load_plan` refuses a plan that was made for another.
template <class... Inputs>
[[nodiscard]] Signature signature(const torch::nn::Sequential& layers, const Inputs&... inputs) {
  return detail::signature_of(detail::chain_of(layers.ptr(), inputs...));
}

template <class... Inputs>
[[nodiscard]] Signature signature(const CheckpointSequential& layers, const Inputs&... inputs) {
  return detail::signature_of(detail::chain_of(layers->inner(), inputs...));
}

template <class Layer, class... Inputs>
[[nodiscard]] Signature signature(const CheckpointLayers<Layer>& layers, const Inputs&... inputs) {
  return detail::signature_of(detail::chain_of(layers.layers(), inputs...));
}

template <class Layer, class... Inputs>
[[nodiscard]] Signature signature(const std::vector<Layer>& layers, const Inputs&... inputs) {
  return detail::signature_of(detail::chain_of(layers, inputs...));
}

}  // namespace refrain
