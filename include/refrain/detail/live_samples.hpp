// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/counting_allocator.hpp>
#include <refrain/detail/memory_reports.hpp>
#include <refrain/detail/surroundings.hpp>
#include <refrain/ledger.hpp>
#include <refrain/memory.hpp>
#include <refrain/memory_sample.hpp>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace refrain::detail {

/// The live bytes of one step over time, on whichever device it uses.
///
/// All of the CPU's with `count_cpu_memory()`; otherwise what its allocator reports to this thread
/// and to the backward passes that it starts, unless a profiler holds that place. Of accelerators
/// what their allocators report, and what they say when they are looked at.
class LiveSamples final : public MemoryListener {
 public:
  using Clock = std::chrono::steady_clock;

  explicit LiveSamples(Clock::time_point start) : start_(start) {
    if (counting_cpu_memory()) {
      counting_ = true;
      cpu_.push_back({0, memory().live});
      CountingAllocator::instance().add(*this);
    }
    look();
    if (counting_ && device_.is_cpu()) return;  // there is nothing else to hear
    reports_.emplace([this](std::int64_t size, std::size_t allocated, c10::Device device) {
      reported(size, allocated, device);
    });
    if (!counting_ && reports_->are_heard()) cpu_.push_back({0, Bytes(0)});
  }
  LiveSamples(const LiveSamples&) = delete;
  LiveSamples& operator=(const LiveSamples&) = delete;
  ~LiveSamples() {
    if (counting_) CountingAllocator::instance().remove(*this);
  }

  /// Asks the accelerator, which may not report by itself.
  void look() {
    const c10::Device device = accelerator();
    if (device.is_cpu()) return;
    const Bytes live = memory(device).live;  // not under the lock: allocators report under theirs
    const std::lock_guard lock(mutex_);
    accelerator_.push_back({seconds(Clock::now()), live});
  }

  /// The timeline of the accelerator if the step used it, else that of the CPU.
  void give(Ledger& ledger) {
    const std::lock_guard lock(mutex_);
    const bool used = std::any_of(
        accelerator_.begin(), accelerator_.end(),
        [this](const MemorySample& sample) { return sample.live != accelerator_.front().live; });
    ledger.device = used ? device_.str() : "cpu";
    ledger.whole = used || counting_;
    ledger.timeline = std::move(used ? accelerator_ : cpu_);
    // Threads may report in another order than they looked at the clock.
    std::stable_sort(
        ledger.timeline.begin(), ledger.timeline.end(),
        [](const MemorySample& a, const MemorySample& b) { return a.seconds < b.seconds; });
  }

 private:
  void live_changed(Clock::time_point when, std::int64_t live) override {
    const std::lock_guard lock(mutex_);
    cpu_.push_back({seconds(when), Bytes(live)});
  }

  void reported(std::int64_t size, std::size_t allocated, c10::Device device) {
    const std::lock_guard lock(mutex_);
    const double now = seconds(Clock::now());
    if (!device.is_cpu() && device_.is_cpu()) device_ = device;
    if (!device.is_cpu() && device == device_)
      accelerator_.push_back({now, Bytes(static_cast<std::int64_t>(allocated))});
    if (device.is_cpu() && !counting_ && !cpu_.empty())
      cpu_.push_back({now, cpu_.back().live + Bytes(size)});
  }

  /// The one that this thread uses, if it has been used before; else another that has; else the
  /// CPU.
  [[nodiscard]] c10::Device accelerator() {
    const std::lock_guard lock(mutex_);
    if (!device_.is_cpu()) return device_;
    const auto in_play = accelerators_in_play();
    if (in_play.empty()) return device_;
    const c10::Device here(in_play.front().type(), at::accelerator::getDeviceIndex());
    const bool used = std::find(in_play.begin(), in_play.end(), here) != in_play.end();
    return device_ = used ? here : in_play.front();
  }

  [[nodiscard]] double seconds(Clock::time_point when) const {
    return std::chrono::duration<double>(when - start_).count();
  }

  Clock::time_point start_;
  std::mutex mutex_;
  bool counting_ = false;
  c10::Device device_ = c10::Device(c10::kCPU);  ///< The accelerator, once one is used.
  std::vector<MemorySample> cpu_;
  std::vector<MemorySample> accelerator_;
  std::optional<MemoryReports> reports_;
};

}  // namespace refrain::detail
