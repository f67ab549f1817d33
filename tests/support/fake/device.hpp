// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "support/fake/generator.hpp"
#include "support/fake/memory.hpp"
#include "support/fake/streams.hpp"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <utility>

/// How LibTorch reaches the fake accelerator's devices, streams, events and pinned memory.
namespace support::fake {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kFake; }
  c10::Device exchangeDevice(c10::Device to) const override {
    return fake_device(std::exchange(current_device, to.index()));
  }
  c10::Device getDevice() const override { return fake_device(current_device); }
  void setDevice(c10::Device to) const override { current_device = to.index(); }
  void uncheckedSetDevice(c10::Device to) const noexcept override { current_device = to.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kFakeDevices; }

  c10::Stream getStream(c10::Device on) const override {
    return machine().current(index_of(on)).stream();
  }
  c10::Stream getDefaultStream(c10::Device on) const override {
    return machine().queue(index_of(on), 0).stream();
  }
  c10::Stream getStreamFromGlobalPool(c10::Device on, bool) const override {
    static std::array<std::atomic<c10::StreamId>, kFakeDevices> next{};
    const auto device = index_of(on);
    return machine()
        .queue(device, 1 + next.at(static_cast<std::size_t>(device))++ % (kStreams - 1))
        .stream();
  }
  c10::Stream getNewStream(c10::Device on, int) const override {
    return getStreamFromGlobalPool(on, false);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const auto before = getStream(to.device());
    current_stream.at(static_cast<std::size_t>(to.device_index())) = to.id();
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    return machine().done(machine().last(machine().queue(stream)));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    machine().wait_for(machine().queue(stream));
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    machine().wait_for_device(device);
  }

  // An event is a ticket.
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new Ticket;
    ticket(*event) = machine().last(machine().queue(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) machine().block(machine().queue(stream), ticket(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || machine().done(ticket(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) machine().wait_for(ticket(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Ticket*>(event);
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.device().type() == kFake) {
      device_pool(data.device().index()).use(data.get(), machine().queue(stream));
    }
  }

 private:
  static c10::DeviceIndex index_of(c10::Device device) {
    return device.has_index() ? device.index() : current_device;
  }
  static Ticket& ticket(void* event) { return *static_cast<Ticket*>(event); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kFakeDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex to) const override { current_device = to; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex to) const override {
    return std::exchange(current_device, to);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex to) const override {
    return to < 0 ? current_device : exchangeDevice(to);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
  bool isPinnedPtr(const void* data) const override { return pinned_pool().owns(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* const pinned = new PinnedMemory;
    return pinned;
  }
};

}  // namespace support::fake
