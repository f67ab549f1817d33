// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <memory>
#include <mutex>

namespace refrain::detail {

/// The streams of an accelerator on which memory goes out and comes back while it computes.
struct SideStreams {
  c10::Stream out;
  c10::Stream back;

  /// Of a device, always the same.
  [[nodiscard]] static const SideStreams& of(c10::Device device) {
    static auto* const mutex = new std::mutex;  // leaked: device threads may outlive statics
    static auto* const all = new std::map<c10::Device, SideStreams, ByIndex>;
    const std::lock_guard<std::mutex> lock(*mutex);
    const auto known = all->find(device);
    if (known != all->end()) return known->second;
    const c10::impl::VirtualGuardImpl guard(device.type());
    return all
        ->emplace(device, SideStreams{guard.getStreamFromGlobalPool(device),
                                      guard.getStreamFromGlobalPool(device)})
        .first->second;
  }

 private:
  struct ByIndex {
    bool operator()(c10::Device a, c10::Device b) const {
      return a.type() != b.type() ? a.type() < b.type() : a.index() < b.index();
    }
  };
};

[[nodiscard]] inline c10::Stream current_stream(c10::Device device) {
  return at::accelerator::getCurrentStream(device.index());
}

/// What is on `stream` by now.
[[nodiscard]] inline std::shared_ptr<c10::Event> event_on(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

}  // namespace refrain::detail
