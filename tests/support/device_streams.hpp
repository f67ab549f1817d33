// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "support/fake_accelerator.hpp"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <cstdint>

/// Short words for streams on the fake accelerator.
namespace support {

inline const c10::impl::VirtualGuardImpl& accelerator() {
  static const c10::impl::VirtualGuardImpl guard(kFake);
  return guard;
}
inline c10::Stream compute_stream(c10::DeviceIndex device = 0) {
  return accelerator().getDefaultStream(fake_device(device));
}
inline c10::Stream side_stream(c10::DeviceIndex device = 0) {
  return accelerator().getStreamFromGlobalPool(fake_device(device));
}

/// `second` goes on when what `first` has been given so far is done.
inline void order(const c10::Stream& first, const c10::Stream& second) {
  c10::Event event(kFake);
  event.record(first);
  event.block(second);
}
/// Tells the allocator that a stream uses the tensor's memory.
inline void record_on(const torch::Tensor& t, const c10::Stream& stream) {
  accelerator().recordDataPtrOnStream(t.storage().data_ptr(), stream);
}

inline torch::Tensor pinned(std::int64_t size = 64) {
  return torch::empty({size}, torch::TensorOptions().pinned_memory(true));
}
inline torch::Tensor filled(double value, c10::DeviceIndex device = 0, std::int64_t size = 64) {
  return torch::full({size}, value, fake_device(device));
}
/// Whether all elements of a host tensor have this value.
inline bool all_are(const torch::Tensor& host, double value) {
  return host.eq(value).all().item<bool>();
}

}  // namespace support
