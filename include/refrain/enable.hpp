// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/any_region.hpp>
#include <refrain/detail/forward_signature.hpp>
#include <refrain/error.hpp>
#include <refrain/options.hpp>
#include <refrain/policy.hpp>

#include <torch/nn/module.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace refrain {

/// One checkpointed module of a model, as it is set now.
struct RegionInfo {
  std::string name;  ///< Its place in the model: "decoder.layers.3".
  std::string type;  ///< What it wraps.
  bool enabled = false;
  CheckpointOptions options;
};

/// The checkpointed modules of a model.
using RegionList = std::vector<RegionInfo>;

[[nodiscard]] inline std::string to_string(const RegionInfo& region) {
  const bool replays = region.options.saved() == Saved::Replayed;
  return fmt::format(
      "{} ({}): {}", region.name, region.type,
      region.enabled ? fmt::format("{}{}", replays ? "replayed, " : "", to_string(region.options))
                     : std::string("plain"));
}

namespace detail {

struct PlacedRegion {
  std::string path;
  AnyRegion* region;
};

[[nodiscard]] inline std::vector<PlacedRegion> find_regions(torch::nn::Module& model) {
  std::vector<PlacedRegion> found;
  for (const auto& item : model.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    auto* const region = dynamic_cast<AnyRegion*>(item.value().get());
    // A block that is registered under several names is one block.
    const auto is_it = [&](const PlacedRegion& other) { return other.region == region; };
    if (region != nullptr && std::none_of(found.begin(), found.end(), is_it))
      found.push_back({item.key(), region});
  }
  if (auto* region = dynamic_cast<AnyRegion*>(&model))
    found.insert(found.begin(), PlacedRegion{model.name(), region});
  return found;
}

template <Module Model>
Model& module_of(Model& model) {
  return model;
}
template <Holder Model>
auto& module_of(Model& model) {
  return *model;
}

}  // namespace detail

/// What is checkpointed in `model`, in the order of its module tree, as it is set now.
///
///     for (const auto& region : refrain::regions(*model)) fmt::print("{}\n", region);
template <class Model>
[[nodiscard]] RegionList regions(Model& model) {
  RegionList list;
  for (const auto& [path, region] : detail::find_regions(detail::module_of(model))) {
    list.push_back({path, region->wrapped_type(), region->enabled(), region->options()});
  }
  return list;
}

/// Chooses which of the model's `Checkpoint<...>` blocks are replayed; the others run plainly.
/// Messages then call each by its place in the model. Gives back what is set.
///
///     refrain::enable(*model, refrain::policy::one_in(2));
///
/// The blocks are the stages that the policy cuts; a block is replayed if it lies in a replayed
/// segment. Whatever follows the last block may hold memory of its own, so policies that leave the
/// last stage plain do not do so here; and each block stays a region of its own, so `every(k)` and
/// other policies of larger segments choose all blocks. Throws `OptionError` if the model has no
/// such block, or none that `only` or `matching` names.
template <class Model>
RegionList enable(Model& model, const policy::AnyPolicy& policy = policy::all()) {
  const auto found = detail::find_regions(detail::module_of(model));
  if (found.empty()) {
    throw OptionError(
        fmt::format("enable({}): the model has no checkpointed block.", policy.describe()),
        "wrap blocks where they are registered: register_module(\"block\", "
        "refrain::checkpoint(Block(512))).");
  }
  Chain chain{.stages = {}, .tail = Tail::More};
  for (const auto& [path, region] : found)
    chain.stages.push_back({path, region->wrapped_type(), region->wrapped_id()});
  const Segmentation cut = policy.cut(chain);
  for (const SegmentNode& node : cut) {
    for (std::int64_t i = node.range.begin; i < node.range.end; ++i) {
      const auto& [path, region] = found[static_cast<std::size_t>(i)];
      region->set_enabled(node.replayed);
      region->set_path(path);
    }
  }
  return regions(model);
}

/// Runs every checkpointed block of the model plainly. Gives back what is set.
template <class Model>
RegionList disable(Model& model) {
  for (const auto& [path, region] : detail::find_regions(detail::module_of(model)))
    region->set_enabled(false);
  return regions(model);
}

}  // namespace refrain

template <>
struct fmt::formatter<refrain::RegionInfo> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const refrain::RegionInfo& region, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(refrain::to_string(region), context);
  }
};
