// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/counting_allocator.hpp>
#include <refrain/memory.hpp>
#include <refrain/memory_sample.hpp>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

namespace refrain {

/// Writes down the CPU's live bytes at every allocation and release while it lives, on any thread.
///
///     refrain::MemoryTimeline timeline;
///     loss(model(x)).backward();
///     for (auto [seconds, live] : timeline.samples()) …
///
/// Memory: 16 bytes a sample, not counted. Time: a lock and a clock read per allocation.
/// Throws `Error` without `count_cpu_memory()`.
class MemoryTimeline final : detail::MemoryListener {
 public:
  MemoryTimeline() {
    detail::require_counting("MemoryTimeline");
    auto& counting = detail::CountingAllocator::instance();
    samples_.push_back({0.0, Bytes(counting.live())});
    counting.add(*this);
  }

  MemoryTimeline(const MemoryTimeline&) = delete;
  MemoryTimeline& operator=(const MemoryTimeline&) = delete;

  ~MemoryTimeline() { detail::CountingAllocator::instance().remove(*this); }

  /// A copy of what was written so far, in the order it happened.
  [[nodiscard]] std::vector<MemorySample> samples() const {
    const std::lock_guard lock(mutex_);
    return samples_;
  }

 private:
  void live_changed(std::chrono::steady_clock::time_point when, std::int64_t live) override {
    const std::lock_guard lock(mutex_);
    samples_.push_back({std::chrono::duration<double>(when - start_).count(), Bytes(live)});
  }

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  mutable std::mutex mutex_;
  std::vector<MemorySample> samples_;
};

}  // namespace refrain
