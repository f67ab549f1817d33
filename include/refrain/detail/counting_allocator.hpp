// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

namespace refrain::detail {

/// Hears of every change of the bytes that live on the CPU.
class MemoryListener {
 public:
  virtual void live_changed(std::chrono::steady_clock::time_point when, std::int64_t live) = 0;

 protected:
  ~MemoryListener() = default;
};

/// LibTorch's own CPU memory, counted: each block carries its size in a header before the data.
///
/// Never destroyed: tensors in static storage may outlive every other object of the program.
class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& instance() {
    static auto* const leaked = new CountingAllocator;
    return *leaked;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::DeviceType::CPU};
    auto* const block = static_cast<std::byte*>(c10::alloc_cpu(bytes + kHeader));
    std::memcpy(block, &bytes, sizeof bytes);
    void* const data = block + kHeader;
    if (poison_.load(std::memory_order_relaxed)) std::memset(data, kPoison, bytes);
    change(data, static_cast<std::int64_t>(bytes));
    // oneDNN's raw_allocate asserts that data pointer and context are the same address.
    return {data, data, &release, c10::DeviceType::CPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  void set_poison(bool on) { poison_.store(on, std::memory_order_relaxed); }

  std::int64_t live() const { return live_.load(std::memory_order_relaxed); }
  std::int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  void reset_peak() { peak_.store(live(), std::memory_order_relaxed); }

  void add(MemoryListener& listener) {
    const std::lock_guard lock(listeners_mutex_);
    listeners_.push_back(&listener);
    listening_.store(true, std::memory_order_relaxed);
  }

  void remove(MemoryListener& listener) {
    const std::lock_guard lock(listeners_mutex_);
    std::erase(listeners_, &listener);
    listening_.store(!listeners_.empty(), std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kHeader = 64;  // keeps the data on a cache line, as LibTorch does
  static constexpr int kPoison = 0xCB;

  CountingAllocator() = default;

  static void release(void* data) {
    if (data == nullptr) return;
    auto* const block = static_cast<std::byte*>(data) - kHeader;
    std::size_t bytes = 0;
    std::memcpy(&bytes, block, sizeof bytes);
    instance().change(data, -static_cast<std::int64_t>(bytes));
    c10::free_cpu(block);
  }

  void change(void* data, std::int64_t by) {
    const auto now = live_.fetch_add(by, std::memory_order_relaxed) + by;
    auto seen = peak_.load(std::memory_order_relaxed);
    while (now > seen && !peak_.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
    }
    if (listening_.load(std::memory_order_relaxed)) tell(now);
    // LibTorch's profiler keeps seeing what its own allocator would have told it.
    if (c10::memoryProfilingEnabled()) {
      c10::reportMemoryUsageToProfiler(data, by,
                                       static_cast<std::size_t>(std::max<std::int64_t>(now, 0)), 0,
                                       c10::Device(c10::DeviceType::CPU));
    }
  }

  void tell(std::int64_t now) {
    const std::lock_guard lock(listeners_mutex_);
    const auto when = std::chrono::steady_clock::now();
    for (auto* const listener : listeners_) listener->live_changed(when, now);
  }

  std::atomic<std::int64_t> live_{0};
  std::atomic<std::int64_t> peak_{0};
  std::atomic<bool> poison_{false};
  std::atomic<bool> listening_{false};
  std::mutex listeners_mutex_;
  std::vector<MemoryListener*> listeners_;
};

}  // namespace refrain::detail
