// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/forward_signature.hpp>
#include <refrain/detail/segment_regions.hpp>
#include <refrain/options.hpp>
#include <refrain/policy.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace refrain {

/// Blocks or functions called one after the other, in segments: what `checkpoint(std::vector,
/// policy)` gives back.
///
///     auto stack = refrain::checkpoint(blocks, refrain::policy::every(4));
///     x = stack(x, mask);   // blocks[i](x, mask) for each i
///
/// Memory: the input of each replayed segment. Time: one more forward of the replayed segments per
/// backward. Copies share the blocks. Throws `OptionError` or `PlanError` when made if the policy
/// cannot cut that many layers.
template <class Layer>
class CheckpointLayers {
 public:
  CheckpointLayers(std::vector<Layer> layers, policy::AnyPolicy policy, CheckpointOptions options)
      : state_(std::make_shared<State>()), policy_(std::move(policy)) {
    state_->layers = std::move(layers);
    const std::string name = options.name().empty() ? "layers" : options.name();
    cut_ = policy_.cut(chain());
    state_->regions = detail::make_regions(cut_, name, options);
    options_ = std::move(options);
  }

  /// Sends `value` through all layers; `extras` go to each of them.
  template <class Value, class... Extras>
    requires std::invocable<Layer&, std::decay_t<Value>, const std::decay_t<Extras>&...>
  auto operator()(Value&& value, const Extras&... extras) const {
    using Result = decltype(detail::call_thing(std::declval<Layer&>(),
                                               std::declval<std::decay_t<Value>>(), extras...));
    static_assert(
        std::constructible_from<Result, Value> && std::invocable<Layer&, Result, const Extras&...>,
        "refrain: each layer must take what the layer before it gives");
    using Run = Calls<detail::kChangesItself<Layer, std::decay_t<Value>, const Extras&...>>;
    return detail::SegmentRunner<Run, Result>::run(Run{state_}, *state_->regions,
                                                   Result(std::forward<Value>(value)), extras...);
  }

  [[nodiscard]] const std::vector<Layer>& layers() const { return state_->layers; }
  [[nodiscard]] const Segmentation& cut() const { return cut_; }
  [[nodiscard]] const policy::AnyPolicy& policy() const { return policy_; }
  [[nodiscard]] const CheckpointOptions& options() const { return options_; }

 private:
  struct State {
    std::vector<Layer> layers;
    std::shared_ptr<detail::SegmentRegions> regions;
  };

  template <bool ChangesThemselves>
  struct Calls {
    std::shared_ptr<State> state;
    // Of functions that change themselves: those from `first` on, as they were.
    std::shared_ptr<std::vector<Layer>> then = nullptr;
    std::size_t first = 0;

    template <class Value, class... Extras>
    Value run(std::size_t i, Value value, const Extras&... extras) const {
      return detail::call_thing(layer(i), std::move(value), extras...);
    }
    [[nodiscard]] Layer& layer(std::size_t i) const {
      return then == nullptr ? state->layers[i] : (*then)[i - first];
    }
    [[nodiscard]] Calls kept(Segment range) const {
      if constexpr (ChangesThemselves) {
        auto copies = std::make_shared<std::vector<Layer>>();
        for (std::int64_t i = range.begin; i < range.end; ++i) {
          copies->push_back(layer(static_cast<std::size_t>(i)));
        }
        return {state, std::move(copies), static_cast<std::size_t>(range.begin)};
      }
      return *this;
    }
    [[nodiscard]] std::size_t count_tensors(Segment range) const {
      std::size_t count = 0;
      if constexpr (detail::Holder<Layer>) {
        for (std::int64_t i = range.begin; i < range.end; ++i) {
          count += detail::count_tensors(*state->layers[static_cast<std::size_t>(i)]);
        }
      }
      return count;
    }
    [[nodiscard]] const std::shared_ptr<State>& owner() const { return state; }
  };

  [[nodiscard]] Chain chain() const {
    Chain chain;
    for (std::size_t i = 0; i < state_->layers.size(); ++i) {
      if constexpr (detail::Holder<Layer>) {
        const auto& module = *state_->layers[i];
        chain.stages.push_back({std::to_string(i), module.name(), typeid(module)});
      } else {
        chain.stages.push_back({std::to_string(i), "function", typeid(Layer)});
      }
    }
    return chain;
  }

  std::shared_ptr<State> state_;
  policy::AnyPolicy policy_;
  CheckpointOptions options_;
  Segmentation cut_;
};

}  // namespace refrain
