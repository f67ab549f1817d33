// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/forward_signature.hpp>
#include <refrain/detail/region.hpp>
#include <refrain/options.hpp>
#include <refrain/policy/by_name.hpp>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace refrain {
namespace detail {

/// A function as the first run calls it: the caller's own. The replay of a function that changes
/// itself when called starts from what it was before the first run.
template <class Function, class... Arguments>
class FunctionCallee {
 public:
  static constexpr bool kIsNoexcept = is_noexcept_call<Function>();

  explicit FunctionCallee(std::shared_ptr<Function> function) : function_(std::move(function)) {}

  template <class... A>
  decltype(auto) operator()(A&&... arguments) {
    return std::invoke(*function_, std::forward<A>(arguments)...);
  }

  /// What the frame keeps.
  [[nodiscard]] FunctionCallee kept() const {
    if constexpr (kChangesItself<Function, Arguments...>)
      return FunctionCallee(std::make_shared<Function>(*function_));
    return *this;
  }

  [[nodiscard]] FunctionCallee for_replay() const { return kept(); }

 private:
  std::shared_ptr<Function> function_;
};

}  // namespace detail

/// A function that does not remember: what `checkpoint(function)` gives back. Copies share the
/// function.
template <class Function>
class CheckpointFunction {
 public:
  CheckpointFunction(Function function, CheckpointOptions options)
      : function_(std::make_shared<Function>(std::move(function))) {
    auto settings = std::make_shared<detail::RegionSettings>();
    settings->name = options.name().empty() ? "a function" : options.name();
    settings->options = std::move(options);
    settings_ = std::move(settings);
  }

  /// Calls the function as one region; without grad mode it is a plain call.
  template <class... Arguments>
    requires std::invocable<Function&, Arguments...>
  auto operator()(Arguments&&... arguments) const {
    if (!detail::regions_are_on())
      return std::invoke(*function_, std::forward<Arguments>(arguments)...);
    return detail::call_region(settings_, detail::FunctionCallee<Function, Arguments...>(function_),
                               /*watch=*/nullptr, std::forward<Arguments>(arguments)...);
  }

  template <class... Arguments>
    requires(!std::invocable<Function&, Arguments...>)
  void operator()(Arguments&&...) const {
    static_assert(detail::kAlwaysFalse<Function>,
                  "refrain: the checkpointed function cannot be called with these arguments");
  }

  [[nodiscard]] const CheckpointOptions& options() const { return settings_->options; }

 private:
  std::shared_ptr<Function> function_;
  std::shared_ptr<const detail::RegionSettings> settings_;
};

}  // namespace refrain
