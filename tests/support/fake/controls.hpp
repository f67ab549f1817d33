// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "support/fake/streams.hpp"

#include <c10/core/Stream.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <future>

/// What tests ask of the fake accelerator: when its work runs, and how long it takes. An
/// `AsyncScope` puts all of it back.
namespace support {

namespace fake {

/// Each operator that the device computes takes this long.
inline void kernel_seconds(double seconds) {
  machine().set_pace([&](Pace& pace) { pace.kernel = Seconds(seconds); });
}
/// Each copy between the host and a device or between devices takes its bytes over this.
inline void copy_rate(double bytes_per_second) {
  machine().set_pace([&](Pace& pace) { pace.copy_rate = bytes_per_second; });
}
/// Each piece of work on a side stream comes late by a random time, and one in eight on a default
/// stream.
inline void delay_streams(std::int64_t max_microseconds, std::uint64_t seed) {
  machine().seed_delays(seed);
  machine().set_pace(
      [&](Pace& pace) { pace.longest_delay = std::chrono::microseconds(max_microseconds); });
}

/// Holds a stream back while it lives. Whoever waits for that stream meanwhile waits forever.
class Held {
 public:
  explicit Held(const c10::Stream& stream) {
    if (machine().pace().mode == Async::AtOnce) return;
    machine().submit(machine().queue(stream), [go = go_.get_future().share()] { go.wait(); });
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { go_.set_value(); }

 private:
  std::promise<void> go_;
};

}  // namespace fake

/// Makes the accelerator asynchronous, or not, in every thread. At its end all work is waited for,
/// and pace and mode are as before.
class AsyncScope {
 public:
  explicit AsyncScope(Async mode) : before_(fake::machine().pace()) {
    settle();
    fake::machine().set_pace([&](fake::Pace& pace) { pace.mode = mode; });
  }
  AsyncScope(const AsyncScope&) = delete;
  AsyncScope& operator=(const AsyncScope&) = delete;
  /// Throws what work has thrown that nobody has waited for, unless an exception is on its way.
  ~AsyncScope() noexcept(false) {
    std::exception_ptr error;
    try {
      settle();
    } catch (...) {
      error = std::current_exception();
    }
    fake::machine().set_pace([&](fake::Pace& pace) { pace = before_; });
    if (error && std::uncaught_exceptions() == exceptions_) std::rethrow_exception(error);
  }

 private:
  static void settle() {
    std::exception_ptr error;
    for (c10::DeviceIndex device = 0; device < kFakeDevices; ++device) {
      try {
        fake::machine().wait_for_device(device);
      } catch (...) {
        error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
  }

  fake::Pace before_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace support
