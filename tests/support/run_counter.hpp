// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <memory>

namespace support {

/// How often a body ran. Copies count together, so a body may capture it by value.
/// 1: forward only; 2: forward and one replay.
class RunCounter {
 public:
  void operator++() const { ++*runs_; }
  void reset() const { *runs_ = 0; }
  [[nodiscard]] int runs() const { return *runs_; }

 private:
  std::shared_ptr<std::atomic<int>> runs_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace support
