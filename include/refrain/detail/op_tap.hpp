// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/error.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

/// Which operators run: a thread-gated view of the operators that code on this thread calls.
///
/// LibTorch reserves a dispatch key for modes that want to see every call. A boxed fallback is
/// registered on it once; threads that do not include the key never reach it. Source of the
/// mechanism: `c10/core/DispatchKey.h`.
namespace refrain::detail {

using OperatorHandle = c10::OperatorHandle;
using OperatorStack = torch::jit::Stack;

/// Sees each operator called at the top level of a piece of code, not those that operators call
/// themselves: one after the other, `after` unless it threw.
class OpObserver {
 public:
  virtual void before(const OperatorHandle& op, const OperatorStack& stack) = 0;
  virtual void after(const OperatorStack& stack) = 0;

 protected:
  ~OpObserver() = default;
};

/// Leaves a replay that has all it needs. Never seen by users unless they write `catch (...)`
/// inside a region.
struct StopReplay final : std::exception {
  const char* what() const noexcept override { return "refrain: the replay has all it needs"; }
};

class OpTap {
 public:
  /// Registers the fallback; throws `Error` if the process leaves no key for it.
  static void install() { key(); }

  /// The key that a thread includes to be seen.
  static c10::DispatchKey key() {
    static const c10::DispatchKey registered = register_fallback();
    return registered;
  }

  /// How many operators the process has lost so far: their libraries were unloaded or destroyed.
  [[nodiscard]] static std::uint64_t operators_removed() {
    return removed_.load(std::memory_order_relaxed);
  }

  /// Throws `StopReplay` from the next operator called, once the one that runs now is over. Sets
  /// `fired` as it does.
  static void stop_at_next_op(bool& fired) {
    stop_ = &fired;
    c10::impl::tls_set_dispatch_key_included(key(), true);
  }

  /// Leaves at once if a stop was asked for: called where a nested region would begin, since no
  /// operator runs there.
  static void stop_if_asked() {
    if (stop_ != nullptr && !inside_an_op()) stop();
  }

 private:
  friend class OpTapScope;

  static bool inside_an_op() {
    return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
  }

  [[noreturn]] static void stop() {
    *std::exchange(stop_, nullptr) = true;
    throw StopReplay();
  }

  // Two keys, so that two libraries that each carry their own hidden copy of Refrain can live in
  // one process.
  static c10::DispatchKey register_fallback() {
    for (auto key : {c10::DispatchKey::TESTING_ONLY_GenericMode,
                     c10::DispatchKey::TESTING_ONLY_GenericWrapper}) {
      try {
        auto library =
            std::make_unique<torch::Library>(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
        registered_key_ = key;
        library->fallback(torch::CppFunction::makeFromBoxedFunction<&OpTap::on_op>());
        registered_ = library.release();
        count_removed_operators();
        return key;
      } catch (const c10::Error&) {
        continue;
      }
    }
    throw Error(
        "refrain: cannot watch operators: other libraries hold both dispatch keys that LibTorch "
        "leaves for this.\n"
        "  likely cause: more than two copies of Refrain in one process; link them to one shared "
        "library.");
  }

  static void count_removed_operators() {
    struct Counter final : c10::OpRegistrationListener {
      void onOperatorRegistered(const OperatorHandle&) override {}
      void onOperatorDeregistered(const OperatorHandle&) override { ++removed_; }
    };
    listener_ = new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Counter>()));
  }

  static void on_op(const OperatorHandle& op, c10::DispatchKeySet keys, OperatorStack* stack) {
    const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, registered_key_);
    if (stop_ != nullptr) {
      // Inside a kernel nothing may be stopped: it may not have filled yet what it saved.
      if (inside_an_op()) return op.redispatchBoxed(below, stack);
      stop();
    }
    OpObserver* const observer = observer_;
    if (observer == nullptr) return op.redispatchBoxed(below, stack);
    observer->before(op, *stack);
    {
      const c10::impl::ExcludeDispatchKeyGuard inner_calls_are_not_seen(registered_key_);
      op.redispatchBoxed(below, stack);
    }
    observer->after(*stack);
  }

  static inline c10::DispatchKey registered_key_ = c10::DispatchKey::Undefined;
  // Never destroyed: other threads may dispatch through it until the process ends.
  static inline torch::Library* registered_ = nullptr;
  static inline c10::RegistrationHandleRAII* listener_ = nullptr;
  static inline std::atomic<std::uint64_t> removed_ = 0;
  static inline constinit thread_local OpObserver* observer_ = nullptr;
  static inline constinit thread_local bool* stop_ = nullptr;
};

/// Shows the operators of this thread to `observer`; null: to nobody. Whatever was asked of the tap
/// inside ends with it.
class OpTapScope {
 public:
  explicit OpTapScope(OpObserver* observer)
      : observer_(std::exchange(OpTap::observer_, observer)),
        stop_(std::exchange(OpTap::stop_, nullptr)),
        was_included_(c10::impl::tls_is_dispatch_key_included(OpTap::key())) {
    c10::impl::tls_set_dispatch_key_included(OpTap::key(), observer != nullptr);
  }

  ~OpTapScope() {
    OpTap::observer_ = observer_;
    OpTap::stop_ = stop_;
    c10::impl::tls_set_dispatch_key_included(OpTap::key(), was_included_);
  }

  OpTapScope(const OpTapScope&) = delete;
  OpTapScope& operator=(const OpTapScope&) = delete;

 private:
  OpObserver* observer_;
  bool* stop_;
  bool was_included_;
};

}  // namespace refrain::detail
