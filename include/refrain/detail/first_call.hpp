// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/detail/first_run.hpp>

#include <torch/nn/module.h>

#include <atomic>
#include <cstddef>
#include <utility>

namespace refrain::detail {

/// How many parameters and buffers a module and its children have.
[[nodiscard]] inline std::size_t count_tensors(const torch::nn::Module& module) {
  return module.parameters().size() + module.buffers().size();
}

/// Watches the first call of a region for parameters and buffers that it makes: its replay would
/// find them made already.
///
/// `count()` gives how many there are, `grown()` is called if there are more afterwards. Later
/// calls cost nothing.
template <class Count, class Grown>
class FirstCall final : public RunWatch {
 public:
  FirstCall(std::atomic<bool>& called, Count count, Grown grown)
      : called_(called),
        count_(std::move(count)),
        grown_(std::move(grown)),
        first_(!called.load(std::memory_order_relaxed)) {
    if (first_) before_ = count_();
  }

  /// Null for later calls.
  [[nodiscard]] const RunWatch* watch() const { return first_ ? this : nullptr; }

  [[nodiscard]] bool must_stay_plain() const override {
    called_.store(true, std::memory_order_relaxed);
    if (count_() == before_) return false;
    grown_();
    return true;
  }

 private:
  std::atomic<bool>& called_;
  Count count_;
  Grown grown_;
  bool first_;
  std::size_t before_ = 0;
};

}  // namespace refrain::detail
