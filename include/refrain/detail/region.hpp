// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/body.hpp>
#include <refrain/detail/frame.hpp>
#include <refrain/detail/routes/hooks.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Whether a call made now would be forgotten: not without grad mode, and not where regions or hooks are switched off.
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
/// `callee.kept()` gives what the frame keeps and `for_replay()` of that what one replay calls. While `watch.enabled()`, the first run remembers, and stays plain
/// if `watch.must_stay_plain()` afterwards.
template <class Callee, class Watch, class... Arguments>
auto call_region(const std::shared_ptr<const RegionSettings>& settings, Callee callee, const Watch& watch,
                 Arguments&&... arguments) {
  std::vector<at::Tensor> inputs;
  auto body = std::make_unique<BoundBody<Callee, Arguments&&...>>(callee.kept(), inputs, arguments...);
  const auto call = [&]() -> decltype(auto) { return callee(std::forward<Arguments>(arguments)...); };
  const auto frame = std::make_shared<HooksFrame>(settings, std::move(body), inputs);
  using Remember = HooksFrame::Remember;
  const Remember remember = watch.enabled() ? Remember::Yes : Remember::No;
  const auto end = [&] {
    if (remember == Remember::No) return;
    if (watch.must_stay_plain()) {
      frame->stay_plain();
    } else {
      frame->forget();
    }
  };
  if constexpr (std::is_void_v<decltype(call())>) {
    frame->run(inputs, remember, call);
    end();
  } else {
    decltype(auto) result = frame->run(inputs, remember, call);
    end();
    return result;
  }
}

}  // namespace refrain::detail
