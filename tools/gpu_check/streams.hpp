// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "checks.hpp"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

namespace gpu_check {

[[nodiscard]] inline c10::Stream current_stream(const Where& where) {
  return at::accelerator::getCurrentStream(where.device.index());
}
[[nodiscard]] inline c10::Stream new_stream(const Where& where) {
  return c10::impl::VirtualGuardImpl(where.device.type()).getStreamFromGlobalPool(where.device);
}

/// What is put on `later` from now on comes after what is on `earlier` by now.
inline void order(const c10::Stream& earlier, const c10::Stream& later) {
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

/// The tensor's memory is not used anew before what is on `stream` by its end is done.
inline void used_on(const torch::Tensor& tensor, const c10::Stream& stream) {
  const c10::impl::VirtualGuardImpl guard(stream.device_type());
  guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

}  // namespace gpu_check
