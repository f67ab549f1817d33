// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/body.hpp>
#include <refrain/detail/first_run.hpp>
#include <refrain/detail/frame.hpp>
#include <refrain/detail/routes/function.hpp>
#include <refrain/detail/routes/hooks.hpp>
#include <refrain/detail/routes/offload.hpp>
#include <refrain/visit_tensors.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/FunctionRef.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Whether a call made now would be forgotten: not without grad mode, and not where regions or
/// hooks are switched off.
[[nodiscard]] inline bool regions_are_on() {
  return at::GradMode::is_enabled() && !thread_state.plain && hooks_enabled();
}

/// Runs one call of a region for the first time; its frame stays with the graph that the run makes.
inline void run_region(const std::shared_ptr<const RegionSettings>& settings,
                       std::unique_ptr<Body> body, const std::vector<at::Tensor>& inputs,
                       const FirstRun& run) {
  if (settings->options.saved() == Saved::Moved) return OffloadedCall(*settings).run(run);
  if (settings->options.route() == Route::Function) {
    const auto frame = std::make_shared<FunctionFrame>(settings, std::move(body), inputs);
    return frame->run(frame, inputs, run);
  }
  std::make_shared<HooksFrame>(settings, std::move(body), inputs)->run(inputs, run);
}

template <class Callee>
consteval bool is_noexcept_callee() {
  if constexpr (requires { Callee::kIsNoexcept; }) return Callee::kIsNoexcept;
  return false;
}

/// Calls `callee(arguments...)` as one region.
///
/// A `Callee::kIsNoexcept` says that no exception may leave it. `callee.kept()` gives what the
/// frame keeps and `for_replay()` of that what one replay calls. `watch` may be null.
template <class Callee, class... Arguments>
auto call_region(const std::shared_ptr<const RegionSettings>& settings, Callee callee,
                 const RunWatch* watch, Arguments&&... arguments) {
  std::vector<at::Tensor> inputs;
  auto body =
      std::make_unique<BoundBody<Callee, Arguments&&...>>(callee.kept(), inputs, arguments...);
  const auto call = [&]() -> decltype(auto) {
    return callee(std::forward<Arguments>(arguments)...);
  };
  const auto run = [&](c10::function_ref<void()> once, FirstRun::Result kind,
                       c10::function_ref<void(FirstRun::OnTensor)> for_each_result) {
    run_region(settings, std::move(body), inputs,
               {once, kind, for_each_result, watch, is_noexcept_callee<Callee>()});
  };
  // By value: what a reference refers to may belong to the body.
  using Result = std::decay_t<decltype(call())>;
  if constexpr (std::is_void_v<Result>) {
    run(call, FirstRun::Result::None, nullptr);
  } else {
    std::optional<Result> result;
    run([&] { result.emplace(call()); },
        kVisitable<Result> ? FirstRun::Result::Visitable : FirstRun::Result::Opaque,
        [&](FirstRun::OnTensor on_tensor) { for_each_tensor_in(*result, on_tensor); });
    return *std::move(result);
  }
}

}  // namespace refrain::detail
