// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/op_tap.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
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
/// kernel calls.
///
/// `BackendSelect` is a dispatch key just above the backends, which most operators have no kernel
/// on. Time: about 0.1 µs a call of a chosen operator, on every thread; nothing on others.
class BackendTap {
 public:
  /// Once a process for each operator, never undone: other threads may dispatch through it.
  static void install(const OperatorHandle& op) {
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const std::string name = c10::toString(op.operator_name());
    if (!all.tapped.insert(name).second) return;
    const std::string space = name.substr(0, name.find("::"));
    auto& library = all.libraries[space];
    if (library == nullptr) {
      library =
          std::make_unique<torch::Library>(torch::Library::IMPL, space, kKey, __FILE__, __LINE__);
    }
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&BackendTap::on_op>());
  }

  /// Whether it can be: some operators, those that only a device's type can be chosen by, have a
  /// kernel of their own there.
  [[nodiscard]] static bool can_install(const OperatorHandle& op) {
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.mutex);
    return all.tapped.contains(c10::toString(op.operator_name())) ||
           !op.hasKernelForDispatchKey(kKey);
  }

  static void run(const OperatorHandle& op, c10::DispatchKeySet below, OperatorStack& stack) {
    op.redispatchBoxed(below, &stack);
  }

  /// Puts `calls` in charge on this thread while it lives; null: nobody.
  class Scope {
   public:
    explicit Scope(BackendCalls* calls) : before_(std::exchange(calls_, calls)) {}
    ~Scope() { calls_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    BackendCalls* before_;
  };

 private:
  static constexpr c10::DispatchKey kKey = c10::DispatchKey::BackendSelect;

  struct Registry {
    std::mutex mutex;
    std::set<std::string> tapped;
    std::map<std::string, std::unique_ptr<torch::Library>> libraries;  ///< By namespace.
  };

  // Leaked: threads may dispatch until the process ends.
  static Registry& registry() {
    static auto* const all = new Registry;
    return *all;
  }

  /// A kernel that calls operators does so with this key switched off, and may change what they
  /// give in place without counting it.
  static bool inside_a_kernel(c10::DispatchKeySet keys) {
    return !keys.has(c10::DispatchKey::ADInplaceOrView);
  }

  static void on_op(const OperatorHandle& op, c10::DispatchKeySet keys, OperatorStack* stack) {
    const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
    BackendCalls* const calls = calls_;
    if (calls == nullptr || inside_a_kernel(keys)) return op.redispatchBoxed(below, stack);
    const Scope inner_calls_are_its_own(nullptr);
    calls->call(op, below, *stack);
  }

  static inline constinit thread_local BackendCalls* calls_ = nullptr;
};

}  // namespace refrain::detail
