// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/body.hpp>
#include <refrain/detail/frame.hpp>
#include <refrain/detail/routes/function.hpp>
#include <refrain/detail/routes/hooks.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <memory>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Whether a call made now would be forgotten: not without grad mode, and not where regions or
/// hooks are switched off.
[[nodiscard]] inline bool regions_are_on() {
  return at::GradMode::is_enabled() && !thread_state.plain && hooks_enabled();
}

/// Watches one call of a region for something that makes its replay impossible to do exactly.
struct NothingToWatch {
  [[nodiscard]] static constexpr bool enabled() { return false; }
  [[nodiscard]] static constexpr bool must_stay_plain() { return false; }
};

/// Calls `callee(arguments...)` as one region.
///
/// A `Callee::kIsNoexcept` says that no exception may leave it. `callee.kept()` gives what the
/// frame keeps and `for_replay()` of that what one replay calls. While `watch.enabled()`, the first
/// run remembers, and stays plain if `watch.must_stay_plain()` afterwards.
template <class Callee, class Watch, class... Arguments>
auto call_region(const std::shared_ptr<const RegionSettings>& settings, Callee callee,
                 const Watch& watch, Arguments&&... arguments) {
  std::vector<at::Tensor> inputs;
  auto body =
      std::make_unique<BoundBody<Callee, Arguments&&...>>(callee.kept(), inputs, arguments...);
  // By value: what a reference refers to may belong to the body.
  const auto call = [&] { return callee(std::forward<Arguments>(arguments)...); };
  if (settings->options.route() == Route::Function) {
    const auto frame = std::make_shared<FunctionFrame>(settings, std::move(body), inputs);
    return frame->run(frame, inputs, watch, call);
  }
  const auto frame = std::make_shared<HooksFrame>(settings, std::move(body), inputs);
  if constexpr (requires { Callee::kIsNoexcept; }) {
    if (Callee::kIsNoexcept) frame->run_replays_to_their_end();
  }
  return frame->run(inputs, watch, call);
}

}  // namespace refrain::detail
