// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/memory.hpp>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

namespace support {

/// Returns when the device has done what it was told, its thread of autograd too.
inline void wait_for(c10::Device device) {
  if (device.is_cpu()) return;
  at::accelerator::synchronizeDevice(device.index());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// Bytes of tensors alive now on the device, whoever holds them.
inline std::int64_t live_bytes(c10::Device device = c10::kCPU) {
  wait_for(device);
  return refrain::memory(device).live.count();
}

/// The highest number of live bytes while `work` ran, above what was alive before it.
inline std::int64_t peak_bytes_of(const std::function<void()>& work) {
  const auto before = live_bytes();
  refrain::reset_peak();
  work();
  return refrain::memory().peak.count() - before;
}

/// What `steps` runs of `step` leave behind, once `warm_up` runs have filled every lazy cache.
inline std::int64_t growth_over(int steps, const std::function<void(int)>& step, int warm_up = 5,
                                c10::Device device = c10::kCPU) {
  for (int i = 0; i < warm_up; ++i) step(i);
  const auto before = live_bytes(device);
  for (int i = 0; i < steps; ++i) step(i);
  return live_bytes(device) - before;
}

}  // namespace support
