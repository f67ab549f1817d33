// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/memory.hpp>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>

namespace refrain::detail {

/// What one device does: bytes and seconds.
class DeviceMeter {
 public:
  using Clock = std::chrono::steady_clock;

  explicit DeviceMeter(c10::Device device) : device_(device) {}

  [[nodiscard]] std::int64_t live() const { return memory(device_).live.count(); }
  [[nodiscard]] std::int64_t peak() const { return memory(device_).peak.count(); }
  void reset() const { reset_peak(device_); }

  /// When all that was asked of the device is done.
  [[nodiscard]] Clock::time_point now() const {
    if (!device_.is_cpu()) at::accelerator::synchronizeDevice(device_.index());
    return Clock::now();
  }
  [[nodiscard]] static double seconds(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }

 private:
  c10::Device device_;
};

}  // namespace refrain::detail
