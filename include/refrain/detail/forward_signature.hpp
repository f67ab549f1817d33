// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

/// What a module's `forward` looks like: the one room for metaprogramming on modules and callables.
namespace refrain::detail {

template <class T>
inline constexpr bool kAlwaysFalse = false;

template <class T>
concept Module = std::is_base_of_v<torch::nn::Module, T>;

template <class T>
concept Holder = requires { typename T::ContainedType; } &&
                 std::is_base_of_v<torch::nn::ModuleHolder<typename T::ContainedType>, T>;

/// The implementation class of `Block` (a holder) or of `BlockImpl` itself.
template <class T>
struct ImplOf {
  using type = T;
};
template <Holder T>
struct ImplOf<T> {
  using type = typename T::ContainedType;
};
template <class T>
using impl_of_t = typename ImplOf<T>::type;

// Inheriting a second `forward` (or call operator) makes the name ambiguous exactly if the first
// exists, whether or not it is a template or overloaded.
struct AnotherForward {
  void forward();
};
template <class M>
struct TwoForwards : M, AnotherForward {};
struct AnotherCall {
  void operator()();
};
template <class F>
struct TwoCalls : F, AnotherCall {};

template <class M>
concept HasForward = std::is_final_v<M> || !requires { &TwoForwards<M>::forward; };

template <class F>
concept MayBeCalled =
    std::is_function_v<std::remove_pointer_t<F>> ||
    (std::is_class_v<F> && (std::is_final_v<F> || !requires { &TwoCalls<F>::operator(); }));

template <class T>
inline constexpr bool kIsModulePointer = false;
template <Module M>
inline constexpr bool kIsModulePointer<std::shared_ptr<M>> = HasForward<M>;

template <class T>
inline constexpr bool kIsVector = false;
template <class T, class... Rest>
inline constexpr bool kIsVector<std::vector<T, Rest...>> = true;

template <class T>
concept HolderWithForward = Holder<T> && HasForward<typename T::ContainedType>;
template <class T>
concept Callable = !Holder<T> && !Module<T> && MayBeCalled<T>;

/// What `checkpoint` serves.
template <class T>
concept Replayable = HolderWithForward<T> || Callable<T> || kIsModulePointer<T> || kIsVector<T>;

/// The signature of a member function, without its class.
template <class Member>
struct SignatureOf;
template <class R, class C, class... A>
struct SignatureOf<R (C::*)(A...)> {
  using type = R(A...);
};
template <class R, class C, class... A>
struct SignatureOf<R (C::*)(A...) const> : SignatureOf<R (C::*)(A...)> {};
template <class R, class C, class... A>
struct SignatureOf<R (C::*)(A...) noexcept> : SignatureOf<R (C::*)(A...)> {};
template <class R, class C, class... A>
struct SignatureOf<R (C::*)(A...) const noexcept> : SignatureOf<R (C::*)(A...)> {};
template <class R, class C, class... A>
struct SignatureOf<R (C::*)(A...) &> : SignatureOf<R (C::*)(A...)> {};
template <class R, class C, class... A>
struct SignatureOf<R (C::*)(A...) const&> : SignatureOf<R (C::*)(A...)> {};
template <class R, class C, class... A>
struct SignatureOf<R (C::*)(A...) & noexcept> : SignatureOf<R (C::*)(A...)> {};
template <class R, class C, class... A>
struct SignatureOf<R (C::*)(A...) const & noexcept> : SignatureOf<R (C::*)(A...)> {};

template <class Member>
inline constexpr bool kIsNoexceptMember = false;
template <class R, class C, class... A>
inline constexpr bool kIsNoexceptMember<R (C::*)(A...) noexcept> = true;
template <class R, class C, class... A>
inline constexpr bool kIsNoexceptMember<R (C::*)(A...) const noexcept> = true;
template <class R, class C, class... A>
inline constexpr bool kIsNoexceptMember<R (C::*)(A...) & noexcept> = true;
template <class R, class C, class... A>
inline constexpr bool kIsNoexceptMember<R (C::*)(A...) const & noexcept> = true;

/// Whether an exception that leaves `M::forward`, or a call of a function object, would end the
/// process. Not seen of overloads, templates and pointers to functions.
template <class M>
consteval bool is_noexcept_forward() {
  if constexpr (requires { &M::forward; }) return kIsNoexceptMember<decltype(&M::forward)>;
  return false;
}
template <class Function>
consteval bool is_noexcept_call() {
  if constexpr (requires { &Function::operator(); })
    return kIsNoexceptMember<decltype(&Function::operator())>;
  return false;
}

/// A `mutable` lambda and its like, if it can be copied. What a `std::function` hides is not seen.
template <class Function, class... Arguments>
inline constexpr bool kChangesItself =
    !Holder<Function> && !std::is_invocable_v<const Function&, Arguments...> &&
    std::is_copy_constructible_v<Function>;

/// Stands for a `forward` that is overloaded or a template.
struct ManyForwards;

template <class M>
struct ForwardSignature {
  using type = ManyForwards;
};
template <class M>
  requires requires { &M::forward; }
struct ForwardSignature<M> : SignatureOf<decltype(&M::forward)> {};
// A template in LibTorch, for any first input and last result; inside another `Sequential` it must
// be one function.
template <>
struct ForwardSignature<torch::nn::SequentialImpl> {
  using type = at::Tensor(at::Tensor);
};
template <class M>
using forward_signature_t = typename ForwardSignature<M>::type;

/// Calls a thing as its user would: a LibTorch holder's call operator does not know a `forward`
/// that is a template.
template <class Thing, class... Inputs>
auto call_thing(Thing& thing, Inputs&&... inputs) {
  if constexpr (Module<std::remove_const_t<Thing>>) {
    return thing.forward(std::forward<Inputs>(inputs)...);
  } else if constexpr (Holder<std::remove_const_t<Thing>> &&
                       std::is_void_v<decltype(thing(std::forward<Inputs>(inputs)...))>) {
    return thing->forward(std::forward<Inputs>(inputs)...);
  } else {
    return thing(std::forward<Inputs>(inputs)...);
  }
}

}  // namespace refrain::detail
