// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/memory_reports.hpp>
#include <refrain/memory.hpp>

#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
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
    } else {
      reports_.emplace([this](std::int64_t size, std::size_t, c10::Device where) {
        if (where.is_cpu()) heard(size);
      });
    }
  }
  StepMeter(const StepMeter&) = delete;
  StepMeter& operator=(const StepMeter&) = delete;

  [[nodiscard]] std::optional<Bytes> live() const {
    if (base_) return memory(device_).live - *base_;
    if (reports_->are_heard()) return Bytes(live_.load());
    return std::nullopt;
  }

  [[nodiscard]] std::optional<Bytes> peak() const {
    if (base_) return memory(device_).peak - *base_;
    if (reports_->are_heard()) return Bytes(peak_.load());
    return std::nullopt;
  }

 private:
  void heard(std::int64_t size) {
    const std::int64_t now = live_.fetch_add(size) + size;
    std::int64_t most = peak_.load();
    while (most < now && !peak_.compare_exchange_weak(most, now)) {
    }
  }

  c10::Device device_;
  std::optional<Bytes> base_;
  std::atomic<std::int64_t> live_ = 0;
  std::atomic<std::int64_t> peak_ = 0;
  std::optional<MemoryReports> reports_;
};

}  // namespace refrain::detail
