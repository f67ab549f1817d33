// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "support/fake/queued_call.hpp"
#include "support/fake/streams.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <utility>

/// Any operator that the fake accelerator has no kernel of its own for.
namespace support::fake {

/// While an operator runs in the caller its copies are no transfers.
class InCaller {
 public:
  explicit InCaller(const c10::OperatorHandle& op) {
    ++depth_;
    const std::lock_guard lock(mutex_);
    seen_.insert(op.schema().name());
  }
  InCaller(const InCaller&) = delete;
  InCaller& operator=(const InCaller&) = delete;
  ~InCaller() { --depth_; }
  static bool now() { return depth_ > 0; }
  static std::set<std::string> take_seen() {
    const std::lock_guard lock(mutex_);
    return std::exchange(seen_, {});
  }

 private:
  static inline thread_local int depth_ = 0;
  static inline std::mutex mutex_;
  static inline std::set<std::string> seen_;
};

/// The operators that have run in their callers and not as work of a stream, since the last call.
inline std::set<std::string> take_ran_in_caller() { return InCaller::take_seen(); }

inline Seconds copy_time(const at::Tensor& t) {
  const auto rate = machine().pace().copy_rate;
  const bool counts = rate > 0 && !InCaller::now();
  return Seconds(counts ? static_cast<double>(t.numel() * t.element_size()) / rate : 0);
}

/// As work of the stream if the results' shapes can be known before, else in the caller, on copies
/// that wait for the stream.
inline void any_operator(const c10::OperatorHandle& op, Values* stack) {
  const auto count = op.schema().arguments().size();
  const auto begin = std::prev(stack->end(), static_cast<std::ptrdiff_t>(count));
  if (machine().pace().mode != Async::AtOnce) {
    if (auto call = QueuedCall::plan(op, Values(begin, stack->end()))) {
      auto results = std::move(*call).launch();
      stack->erase(begin, stack->end());
      std::ranges::move(results, std::back_inserter(*stack));
      return;
    }
  }
  machine().launch(machine().current(current_device), kernel_time(), [] {});
  const InCaller scope(op);
  at::native::cpu_fallback(op, stack);
}

}  // namespace support::fake
