// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/visit_tensors.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/OptionalArrayRef.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace refrain::detail {

/// The code of one call of a region, ready to run again: what to call, with which arguments.
class Body {
 public:
  virtual ~Body() = default;

  /// Runs with `inputs` as the tensor arguments. The result's tensors go to `outputs` unless it is
  /// null.
  virtual void run(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>* outputs) = 0;
};

/// How an argument is kept for the replay, and lent to it: by value, and views of someone else's
/// memory as what they view.
template <class T>
struct Kept {
  using type = T;
  static const T& keep(const T& value) { return value; }
  static T& lend(T& kept) { return kept; }
};
template <class View, class Owner>
struct KeptView {
  using type = Owner;
  static Owner keep(const View& view) { return Owner(view.begin(), view.end()); }
  static View lend(Owner& kept) { return View(kept); }
};
template <class View, class Optional>
struct KeptOptionalView {
  using Inner = Kept<View>;
  using type = std::optional<typename Inner::type>;
  static type keep(const Optional& view) {
    return view.has_value() ? type(Inner::keep(*view)) : std::nullopt;
  }
  static Optional lend(type& kept) {
    return kept ? Optional(Inner::lend(*kept)) : Optional(std::nullopt);
  }
};
template <class T>
struct Kept<c10::ArrayRef<T>> : KeptView<c10::ArrayRef<T>, std::vector<T>> {};
template <class T>
struct Kept<std::span<T>> : KeptView<std::span<T>, std::vector<std::remove_const_t<T>>> {};
template <>
struct Kept<std::vector<bool>::reference> {
  using type = bool;
  static bool keep(bool value) { return value; }
  static bool& lend(bool& kept) { return kept; }
};
template <>
struct Kept<std::string_view> : KeptView<std::string_view, std::string> {};
template <class T>
struct Kept<std::optional<c10::ArrayRef<T>>>
    : KeptOptionalView<c10::ArrayRef<T>, std::optional<c10::ArrayRef<T>>> {};
template <class T>
struct Kept<c10::OptionalArrayRef<T>>
    : KeptOptionalView<c10::ArrayRef<T>, c10::OptionalArrayRef<T>> {};

template <class T>
inline constexpr bool kIsInitializerList = false;
template <class T>
inline constexpr bool kIsInitializerList<std::initializer_list<T>> = true;

template <class Argument>
using kept_t = typename Kept<std::decay_t<Argument>>::type;

template <class Argument>
kept_t<Argument> keep_argument(const std::decay_t<Argument>& value) {
  static_assert(
      !kIsInitializerList<std::decay_t<Argument>>,
      "refrain: a region cannot keep a std::initializer_list for the replay: pass a std::vector");
  static_assert(
      std::is_copy_constructible_v<kept_t<Argument>>,
      "refrain: a region keeps its arguments by value for the replay: they must be copyable");
  return Kept<std::decay_t<Argument>>::keep(value);
}

/// Calls `Callee` with arguments of the same types and value categories as in the first run.
template <class Callee, class... Arguments>
class BoundBody final : public Body {
 public:
  /// Moves the tensors out of the kept arguments into `inputs`.
  BoundBody(Callee callee, std::vector<at::Tensor>& inputs,
            const std::decay_t<Arguments>&... arguments)
      : callee_(std::move(callee)), arguments_(keep_argument<Arguments>(arguments)...) {
    for_each_tensor_in(
        arguments_, [&inputs](at::Tensor& tensor) { inputs.push_back(std::exchange(tensor, {})); });
  }

  void run(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor>* outputs) override {
    // A copy: the body may change or move from its arguments, and may have to run once more.
    auto arguments = arguments_;
    std::size_t next = 0;
    for_each_tensor_in(arguments, [&](at::Tensor& tensor) { tensor = inputs[next++]; });
    call(arguments, outputs, std::index_sequence_for<Arguments...>());
  }

 private:
  template <class Argument>
  static decltype(auto) as(kept_t<Argument>& kept) {
    if constexpr (!std::is_same_v<std::decay_t<Argument>, std::remove_cvref_t<Argument>>) {
      return (kept);  // an array or a function, kept as a pointer
    } else if constexpr (std::is_same_v<kept_t<Argument>, std::decay_t<Argument>>) {
      return static_cast<Argument&&>(kept);
    } else {
      return Kept<std::decay_t<Argument>>::lend(kept);
    }
  }

  template <std::size_t... I>
  void call(std::tuple<kept_t<Arguments>...>& arguments, std::vector<at::Tensor>* outputs,
            std::index_sequence<I...>) {
    auto callee = callee_.for_replay();
    using Result = std::invoke_result_t<decltype(callee)&, Arguments...>;
    if constexpr (std::is_void_v<Result>) {
      callee(as<Arguments>(std::get<I>(arguments))...);
    } else {
      auto result = callee(as<Arguments>(std::get<I>(arguments))...);
      if (outputs != nullptr) {
        for_each_tensor_in(result, [outputs](at::Tensor& tensor) { outputs->push_back(tensor); });
      }
    }
  }

  Callee callee_;
  std::tuple<kept_t<Arguments>...> arguments_;
};

}  // namespace refrain::detail
