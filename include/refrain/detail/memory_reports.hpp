// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace refrain::detail {

/// Hears what allocators report to profilers while it lives: of this thread, and of the backward
/// passes that it starts. Not where a profiler runs, which has that place; and none can be started
/// meanwhile.
class MemoryReports {
 public:
  /// Bytes taken or given back, all that is allocated on the device by now (0: unknown), and the
  /// device.
  using Hear = std::function<void(std::int64_t, std::size_t, c10::Device)>;

  explicit MemoryReports(Hear hear) {
    if (c10::ThreadLocalDebugInfo::get(place()) != nullptr) return;
    state_ = std::make_shared<State>(std::move(hear));
    guard_.emplace(place(), state_);
  }
  MemoryReports(const MemoryReports&) = delete;
  MemoryReports& operator=(const MemoryReports&) = delete;
  ~MemoryReports() {
    if (state_) state_->end();
  }

  /// Whether the place was free.
  [[nodiscard]] bool are_heard() const { return state_ != nullptr; }

 private:
  // LibTorch takes whatever lies in this place for a profiler's state. It may outlive this: who
  // takes the thread's state along holds it.
  class State final : public torch::profiler::impl::ProfilerStateBase {
   public:
    explicit State(Hear hear)
        : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(
              torch::profiler::impl::ProfilerState::Disabled)),
          hear_(std::move(hear)) {}

    void end() {
      const std::lock_guard lock(mutex_);
      hear_ = nullptr;
    }
    void reportMemoryUsage(void* /*data*/, std::int64_t size, std::size_t allocated,
                           std::size_t /*reserved*/, c10::Device device) override {
      const std::lock_guard lock(mutex_);
      if (hear_) hear_(size, allocated, device);
    }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
    torch::profiler::impl::ActiveProfilerType profilerType() override {
      return torch::profiler::impl::ActiveProfilerType::NONE;
    }

   private:
    std::mutex mutex_;
    Hear hear_;
  };

  // A constant in LibTorch 2.11, an object of a class in 2.15.
  static c10::DebugInfoKind place() { return c10::DebugInfoKind::PROFILER_STATE; }

  std::shared_ptr<State> state_;
  std::optional<c10::DebugInfoGuard> guard_;
};

}  // namespace refrain::detail
