// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/keep_call.hpp>

#include <string_view>
#include <type_traits>

namespace refrain {

/// Runs `thunk` once a step: the first run of the region around it keeps the result, the replay
/// takes it and does not run the code again. For routers whose ties must not flip, collectives, and
/// calls that are dear.
///
///     auto chosen = refrain::keep("router", [&] { return torch::topk(scores, 2); });
///
/// The result is made of tensors, in whatever `visit_tensors` knows. Gradients flow through it as
/// in the plain run: what autograd saves inside the code stays as well. Outside regions it is a
/// plain call. With `policy::keep_named`, a region keeps the names in it only.
///
/// Memory: the result, and what autograd saves inside. Throws `DivergenceError` in the replay if
/// the result was changed in place, and `Error` on `Route::Function` for a result that needs a
/// gradient.
template <class Thunk>
auto keep(std::string_view name, Thunk&& thunk) {
  using Result = std::decay_t<std::invoke_result_t<Thunk&>>;
  static_assert(!std::is_void_v<Result>, "refrain: keep() is for results; use once() for none");
  return detail::keep_as(detail::KeepCall::Kind::Named, name, thunk);
}

/// Runs `thunk` in the first run of the region around it, and not in its replays: for side effects,
/// as logging, counters and collectives. Random numbers drawn in it are not drawn again.
///
///     refrain::once([&] { fmt::print("{}\n", x.abs().max().item<float>()); });
template <class Thunk>
void once(Thunk&& thunk) {
  detail::KeepCall call("once", detail::KeepCall::Kind::Always);
  if (call.answer() != nullptr) return call.repeat_effects();
  call.run([&] { thunk(); });
  call.take_nothing();
}

}  // namespace refrain
