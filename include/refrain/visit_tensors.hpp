// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace refrain {
namespace detail {

template <class T, class Visit>
concept TaughtByUser = requires(T& value, Visit& visit) { visit_tensors(value, visit); };

template <class T>
inline constexpr bool kIsTuple = false;
template <class... T>
inline constexpr bool kIsTuple<std::tuple<T...>> = true;
template <class A, class B>
inline constexpr bool kIsTuple<std::pair<A, B>> = true;
template <class T, std::size_t N>
inline constexpr bool kIsTuple<std::array<T, N>> = true;

template <class T>
inline constexpr bool kIsList = false;
template <class T, class... Rest>
inline constexpr bool kIsList<std::vector<T, Rest...>> = !std::is_same_v<T, bool>;

template <class T>
inline constexpr bool kIsMap = false;
template <class... T>
inline constexpr bool kIsMap<std::map<T...>> = true;
template <class... T>
inline constexpr bool kIsMap<std::unordered_map<T...>> = true;

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

struct AnyVisitor {
  template <class T>
  void operator()(T&) {}
};

/// Whether the tensors inside a value, if it has any, can be found.
template <class T>
inline constexpr bool kVisitable =
    std::is_same_v<T, at::Tensor> || std::is_arithmetic_v<T> || std::is_enum_v<T> ||
    std::is_same_v<T, std::string> || TaughtByUser<T, AnyVisitor>;
template <class... T>
inline constexpr bool kVisitable<std::tuple<T...>> = (kVisitable<T> && ...);
template <class A, class B>
inline constexpr bool kVisitable<std::pair<A, B>> = kVisitable<A> && kVisitable<B>;
template <class T, std::size_t N>
inline constexpr bool kVisitable<std::array<T, N>> = kVisitable<T>;
template <class T, class... Rest>
inline constexpr bool kVisitable<std::vector<T, Rest...>> = kVisitable<T>;
template <class K, class T, class... Rest>
inline constexpr bool kVisitable<std::map<K, T, Rest...>> = kVisitable<T>;
template <class K, class T, class... Rest>
inline constexpr bool kVisitable<std::unordered_map<K, T, Rest...>> = kVisitable<T>;
template <class T>
inline constexpr bool kVisitable<std::optional<T>> = kVisitable<T>;

/// Calls `on_tensor` for each tensor inside a value, by reference, in a fixed order.
class TensorVisitor {
 public:
  using OnTensor = c10::function_ref<void(at::Tensor&)>;
  explicit TensorVisitor(OnTensor on_tensor) : on_tensor_(on_tensor) {}

  template <class T>
  void operator()(T& value) {
    using Value = std::remove_const_t<T>;
    if constexpr (std::is_same_v<Value, at::Tensor>) {
      on_tensor_(value);
    } else if constexpr (kIsTuple<Value>) {
      std::apply([this](auto&... element) { ((*this)(element), ...); }, value);
    } else if constexpr (kIsList<Value>) {
      for (auto& element : value) (*this)(element);
    } else if constexpr (kIsMap<Value>) {
      for (auto& [key, element] : value) (*this)(element);
    } else if constexpr (kIsOptional<Value>) {
      if (value) (*this)(*value);
    } else if constexpr (TaughtByUser<T, TensorVisitor>) {
      visit_tensors(value, *this);
    }
  }

 private:
  OnTensor on_tensor_;
};

/// Visits the tensors of `value`: tensors, and tuples, pairs, arrays, vectors, maps and optionals
/// of what can be visited, and structs that a free function found by argument-dependent lookup
/// teaches:
///
///     struct Out { torch::Tensor a; std::vector<torch::Tensor> b; };
///     template <class Visitor> void visit_tensors(Out& out, Visitor&& visit) { visit(out.a);
///     visit(out.b); }
template <class T>
void for_each_tensor_in(T& value, TensorVisitor::OnTensor on_tensor) {
  TensorVisitor visitor(on_tensor);
  visitor(value);
}

}  // namespace detail
}  // namespace refrain
