// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/op_tap.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace refrain::detail {

/// Stands between autograd and the kernels of chosen operators.
class BackendCalls {
 public:
  /// Instead of the kernel, which `BackendTap::run` runs.
  virtual void call(const OperatorHandle& op, c10::DispatchKeySet below, OperatorStack& stack) = 0;

 protected:
  ~BackendCalls() = default;
};

/// Lets a thread answer chosen operators itself, below autograd, so that their nodes are made as
/// ever. Composite operators never come here, what they are made of does; nor do operators that a
/// kernel calls, which may change what they give in place without counting it.
///
/// `BackendSelect` is a dispatch key just above the backends, which most operators have no kernel
/// on. There a kernel's own calls look like all others, so a second key, above autograd, marks
/// those that are not: a key for modules without memory, which LibTorch declares and does not use.
///
/// Time: about 0.1 µs a call of a chosen operator, on every thread, and as much again where a
/// thread answers; nothing on other operators.
class BackendTap {
 public:
  /// Once a process for each operator, never undone: other threads may dispatch through it.
  static void install(const OperatorHandle& op) {
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const std::string name = c10::toString(op.operator_name());
    if (!all.tapped.insert(name).second) return;
    if (all.others == nullptr) all.others = let_others_pass();
    const std::string space = name.substr(0, name.find("::"));
    for (const auto key : {kAbove, kBelow}) {
      auto& library = all.libraries[{space, key}];
      if (library == nullptr) {
        library =
            std::make_unique<torch::Library>(torch::Library::IMPL, space, key, __FILE__, __LINE__);
      }
      library->impl(name.c_str(),
                    key == kAbove
                        ? torch::CppFunction::makeFromBoxedFunction<&BackendTap::above>()
                        : torch::CppFunction::makeFromBoxedFunction<&BackendTap::below>());
    }
  }

  /// Whether it can be: some operators, those that only a device's type can be chosen by, have a
  /// kernel of their own there.
  [[nodiscard]] static bool can_install(const OperatorHandle& op) {
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.mutex);
    return all.tapped.contains(c10::toString(op.operator_name())) ||
           !op.hasKernelForDispatchKey(kBelow);
  }

  static void run(const OperatorHandle& op, c10::DispatchKeySet below, OperatorStack& stack) {
    op.redispatchBoxed(below, &stack);
  }

  /// Puts `calls` in charge on this thread while it lives; null: nobody.
  class Scope {
   public:
    explicit Scope(BackendCalls* calls)
        : before_(std::exchange(calls_, calls)),
          coming_(std::exchange(BackendTap::coming_, nullptr)) {
      if (before_ != calls) mark(calls != nullptr);
    }
    ~Scope() {
      BackendTap::coming_ = coming_;
      if (std::exchange(calls_, before_) != before_) mark(before_ != nullptr);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    static void mark(bool on) { c10::impl::tls_set_dispatch_key_included(kAbove, on); }

    BackendCalls* before_;
    const void* coming_;
  };

 private:
  static constexpr c10::DispatchKey kAbove = c10::DispatchKey::DeferredInit;
  static constexpr c10::DispatchKey kBelow = c10::DispatchKey::BackendSelect;

  struct Registry {
    std::mutex mutex;
    std::set<std::string> tapped;
    std::unique_ptr<torch::Library> others;
    std::map<std::pair<std::string, c10::DispatchKey>, std::unique_ptr<torch::Library>> libraries;
  };

  // Leaked: threads may dispatch until the process ends.
  static Registry& registry() {
    static auto* const all = new Registry;
    return *all;
  }

  static std::unique_ptr<torch::Library> let_others_pass() {
    auto library =
        std::make_unique<torch::Library>(torch::Library::IMPL, "_", kAbove, __FILE__, __LINE__);
    try {
      library->fallback(torch::CppFunction::makeFallthrough());
    } catch (const c10::Error&) {
      // Another copy of Refrain in the process has said so before.
    }
    return library;
  }

  static c10::DispatchKeySet after(c10::DispatchKeySet keys, c10::DispatchKey key) {
    return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key);
  }

  static void above(const OperatorHandle& op, c10::DispatchKeySet keys, OperatorStack* stack) {
    struct Coming {
      explicit Coming(const void* op) : before(std::exchange(coming_, op)) {}
      ~Coming() { coming_ = before; }
      const void* before;
    };
    const bool inside_a_kernel =
        c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
    // A custom operator's own autograd kernel hands the call on.
    const bool handed_on = coming_ == &op.schema();
    const Coming coming(inside_a_kernel && !handed_on ? nullptr : &op.schema());
    op.redispatchBoxed(after(keys, kAbove), stack);
  }

  static void below(const OperatorHandle& op, c10::DispatchKeySet keys, OperatorStack* stack) {
    BackendCalls* const calls = calls_;
    if (calls == nullptr || coming_ != &op.schema())
      return op.redispatchBoxed(after(keys, kBelow), stack);
    const Scope inner_calls_are_its_own(nullptr);
    calls->call(op, after(keys, kBelow), *stack);
  }

  static inline constinit thread_local BackendCalls* calls_ = nullptr;
  /// The operator that autograd is about to hand on.
  static inline constinit thread_local const void* coming_ = nullptr;
};

}  // namespace refrain::detail
