// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/checkpoint_function.hpp>
#include <refrain/checkpoint_layers.hpp>
#include <refrain/checkpoint_module.hpp>
#include <refrain/checkpoint_sequential.hpp>
#include <refrain/options.hpp>
#include <refrain/policy.hpp>

#include <memory>
#include <utility>
#include <vector>

namespace refrain {

/// Gives back something that is used exactly like `block` and does not remember its activations:
/// they are rebuilt, by running it again, when backward asks for them.
///
///     auto quiet = refrain::checkpoint(Block(512));
///     quiet(x).sum().backward();
///
/// Memory: keeps the arguments and the buffers that the call changes, nothing else. Time: one more
/// forward per backward. Randomness: the replay draws the same numbers, unless `Rng::Ignore`.
/// Buffers move once. Throws `DivergenceError` from `backward()` if the replay saves other tensors
/// than the first run, or if a tensor that it reads was changed in between.
template <detail::HolderWithForward Block>
[[nodiscard]] Checkpoint<Block> checkpoint(Block block, CheckpointOptions options = {}) {
  return Checkpoint<Block>(
      std::make_shared<typename Checkpoint<Block>::ContainedType>(block.ptr(), std::move(options)));
}

template <detail::Module Impl>
  requires detail::HasForward<Impl>
[[nodiscard]] Checkpoint<Impl> checkpoint(std::shared_ptr<Impl> block,
                                          CheckpointOptions options = {}) {
  return Checkpoint<Impl>(
      std::make_shared<CheckpointImpl<Impl>>(std::move(block), std::move(options)));
}

/// Builds the block in place: `refrain::checkpoint<Block>(512)`.
template <class Block, class... Arguments>
  requires detail::Holder<Block> &&
           std::constructible_from<typename Block::ContainedType, Arguments...>
[[nodiscard]] Checkpoint<Block> checkpoint(Arguments&&... arguments) {
  return checkpoint(Block(
      std::make_shared<typename Block::ContainedType>(std::forward<Arguments>(arguments)...)));
}

/// A function in, a function out: any arguments, any result made of tensors.
///
///     auto attend = refrain::checkpoint([scale](Tensor q, Tensor k, Tensor v) {
///       return torch::softmax(q.matmul(k.transpose(-2, -1)) * scale, -1).matmul(v);
///     });
///
/// Memory, time, errors: as above. What the function captures by reference must outlive the
/// backward pass.
template <detail::Callable Function>
[[nodiscard]] CheckpointFunction<Function> checkpoint(Function function,
                                                      CheckpointOptions options = {}) {
  return CheckpointFunction<Function>(std::move(function), std::move(options));
}

/// A chain cut by a policy: its modules, names and archives stay as they are.
///
///     auto stack = refrain::checkpoint(layers, refrain::policy::every(4));
[[nodiscard]] inline CheckpointSequential checkpoint(torch::nn::Sequential layers,
                                                     policy::AnyPolicy policy,
                                                     CheckpointOptions options = {}) {
  return CheckpointSequential(std::move(layers), std::move(policy), std::move(options));
}

/// Blocks, or functions, that are called one after the other, cut by a policy.
template <class Layer>
[[nodiscard]] CheckpointLayers<Layer> checkpoint(std::vector<Layer> layers,
                                                 policy::AnyPolicy policy = policy::all(),
                                                 CheckpointOptions options = {}) {
  return CheckpointLayers<Layer>(std::move(layers), std::move(policy), std::move(options));
}

/// The same of shared modules, of an abstract base too.
template <detail::Module Impl>
  requires detail::HasForward<Impl>
[[nodiscard]] CheckpointLayers<torch::nn::ModuleHolder<Impl>> checkpoint(
    const std::vector<std::shared_ptr<Impl>>& layers, policy::AnyPolicy policy = policy::all(),
    CheckpointOptions options = {}) {
  return checkpoint(std::vector<torch::nn::ModuleHolder<Impl>>(layers.begin(), layers.end()),
                    std::move(policy), std::move(options));
}

/// What cannot be served says so in one sentence.
template <class Thing, class... Rest>
  requires(!detail::Replayable<std::remove_cvref_t<Thing>>)
void checkpoint(Thing&&, Rest&&...) {
  static_assert(detail::kAlwaysFalse<Thing>,
                "refrain::checkpoint needs a module holder with a forward(), a callable, a "
                "Sequential or a std::vector of either");
}

}  // namespace refrain
