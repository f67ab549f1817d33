// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/checkpoint.hpp>
#include <refrain/error.hpp>
#include <refrain/options.hpp>
#include <refrain/tier.hpp>

#include <concepts>
#include <utility>

namespace refrain {
namespace detail {

[[nodiscard]] inline CheckpointOptions moved_to(AnyTier tier, CheckpointOptions options) {
  const Bytes smallest = options.tier().smallest;
  options.tier(std::move(tier), smallest).saved(Saved::Moved);
  return options;
}

}  // namespace detail

/// Gives back something that is used exactly like `thing` and whose saved tensors wait for backward
/// in `tier`: nothing is run twice.
///
///     auto block = refrain::offload(Block(512), refrain::tier::host());
///     auto attend = refrain::offload(attention, refrain::tier::disk("/scratch"));
///
/// `thing`: whatever `checkpoint` takes: a module, a function, a chain with a policy. Options may
/// say more (`check`, `name`).
///
/// Each storage moves once, when nobody else holds it: parameters, buffers and whatever is alive
/// anyway stay, as do tensors below 4 KiB. It comes back when backward asks for it; what was
/// moved just before it, as much again and at least one tensor, is on its way then.
///
/// Errors: `TierError` from the call if the tier cannot take a tensor (the tensor is not lost) and
/// from `backward()` if it cannot give it back; `DivergenceError` from `backward()` if what was
/// saved was changed in place since; `OptionError` without a tier.
template <class Thing, class... Rest>
  requires detail::Replayable<std::remove_cvref_t<Thing>>
[[nodiscard]] auto offload(Thing thing, AnyTier tier, CheckpointOptions options = {}) {
  return checkpoint(std::move(thing), detail::moved_to(std::move(tier), std::move(options)));
}

/// A chain cut by a policy: each of its segments is one region.
[[nodiscard]] inline CheckpointSequential offload(torch::nn::Sequential layers,
                                                  policy::AnyPolicy policy, AnyTier tier,
                                                  CheckpointOptions options = {}) {
  return checkpoint(std::move(layers), std::move(policy),
                    detail::moved_to(std::move(tier), std::move(options)));
}

template <class Layer>
[[nodiscard]] CheckpointLayers<Layer> offload(std::vector<Layer> layers, policy::AnyPolicy policy,
                                              AnyTier tier, CheckpointOptions options = {}) {
  return checkpoint(std::move(layers), std::move(policy),
                    detail::moved_to(std::move(tier), std::move(options)));
}

}  // namespace refrain
