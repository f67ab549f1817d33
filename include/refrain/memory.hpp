// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <refrain/bytes.hpp>
#include <refrain/detail/counting_allocator.hpp>
#include <refrain/error.hpp>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Device.h>

#include <fmt/format.h>

#include <cstdint>

namespace refrain {

/// Bytes of tensors that live now, and the most that ever lived since `reset_peak()`.
struct MemoryUse {
  Bytes live;
  Bytes peak;
};

/// Whether fresh CPU memory is filled with nonsense, so that reading it too early shows.
enum class Poison { Off, On };

/// Counts every byte LibTorch takes on the CPU from now on. Call it first thing in `main`.
///
///     int main() {
///       refrain::count_cpu_memory();
///       …
///       fmt::print("peak {}\n", refrain::memory().peak);
///     }
///
/// Memory: 64 bytes a tensor, which are not counted. Time: two atomic operations.
/// A second call only changes `poison`. Throws `Error` if a stronger allocator is in place.
inline void count_cpu_memory(Poison poison = Poison::Off) {
  constexpr std::uint8_t kPriority = 10;
  auto& counting = detail::CountingAllocator::instance();
  counting.set_poison(poison == Poison::On);
  c10::SetCPUAllocator(&counting, kPriority);
  if (c10::GetCPUAllocator() == &counting) return;
  throw Error("count_cpu_memory() could not become LibTorch's CPU allocator.",
              fmt::format("one with a priority above {} is set: count with that one instead.",
                          int{kPriority}));
}

/// True after `count_cpu_memory()`, unless someone put another allocator in its place.
[[nodiscard]] inline bool counting_cpu_memory() {
  return c10::GetCPUAllocator() == &detail::CountingAllocator::instance();
}

namespace detail {

inline void require_counting(const char* who) {
  if (counting_cpu_memory()) return;
  throw Error(fmt::format("{} cannot tell the CPU's bytes, nobody counts them.", who),
              "call refrain::count_cpu_memory() first thing in main().");
}

inline c10::DeviceIndex require_accelerator(const char* who, c10::Device device) {
  const auto here = at::accelerator::getAccelerator();
  if (!here || *here != device.type()) {
    throw Error(fmt::format("{} was asked about {}, this process has {}.", who, device.str(),
                            here ? c10::DeviceTypeName(*here, true) : "no accelerator"));
  }
  return device.has_index() ? device.index() : at::accelerator::getDeviceIndex();
}

}  // namespace detail

/// What tensors take on `device` now, and took at most.
///
/// On the CPU exact, from every thread (needs `count_cpu_memory()`); on an accelerator what its own
/// caching allocator says.
[[nodiscard]] inline MemoryUse memory(c10::Device device = c10::Device(c10::kCPU)) {
  if (device.is_cpu()) {
    detail::require_counting("memory()");
    const auto& counting = detail::CountingAllocator::instance();
    return {Bytes(counting.live()), Bytes(counting.peak())};
  }
  const auto index = detail::require_accelerator("memory()", device);
  const auto bytes = at::accelerator::getDeviceStats(index).allocated_bytes[0];
  return {Bytes(bytes.current), Bytes(bytes.peak)};
}

/// The peak starts again from what lives now.
inline void reset_peak(c10::Device device = c10::Device(c10::kCPU)) {
  if (device.is_cpu()) {
    detail::require_counting("reset_peak()");
    detail::CountingAllocator::instance().reset_peak();
    return;
  }
  at::accelerator::resetPeakStats(detail::require_accelerator("reset_peak()", device));
}

}  // namespace refrain
