// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/memory.hpp>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace refrain::detail {

/// Bytes taken and given back on one device since the meter began, and the most in between.
///
/// Exact with `count_cpu_memory()` and on accelerators. Otherwise the CPU's allocator reports to
/// this thread and to the backward passes that it starts, unless a profiler holds that place: then
/// there is nothing to tell.
class StepMeter {
 public:
  explicit StepMeter(c10::Device device) : device_(device) {
    if (!device.is_cpu() || counting_cpu_memory()) {
      reset_peak(device);
      base_ = memory(device).live;
    } else if (c10::ThreadLocalDebugInfo::get(place()) == nullptr) {
      listener_ = std::make_shared<Listener>();
      guard_.emplace(place(), listener_);
    }
  }

  [[nodiscard]] std::optional<Bytes> live() const {
    if (base_) return memory(device_).live - *base_;
    if (listener_) return Bytes(listener_->live.load());
    return std::nullopt;
  }

  [[nodiscard]] std::optional<Bytes> peak() const {
    if (base_) return memory(device_).peak - *base_;
    if (listener_) return Bytes(listener_->peak.load());
    return std::nullopt;
  }

 private:
  // A constant in LibTorch 2.11, an object of a class in 2.15.
  static c10::DebugInfoKind place() { return c10::DebugInfoKind::PROFILER_STATE; }

  struct Listener final : c10::MemoryReportingInfoBase {
    std::atomic<std::int64_t> live = 0;
    std::atomic<std::int64_t> peak = 0;

    void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t,
                           c10::Device device) override {
      if (!device.is_cpu()) return;
      const std::int64_t now = live.fetch_add(size) + size;
      std::int64_t most = peak.load();
      while (most < now && !peak.compare_exchange_weak(most, now)) {
      }
    }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
  };

  c10::Device device_;
  std::optional<Bytes> base_;
  std::shared_ptr<Listener> listener_;
  std::optional<c10::DebugInfoGuard> guard_;
};

}  // namespace refrain::detail
