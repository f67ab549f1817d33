// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "support/fake/generator.hpp"
#include "support/fake/memory.hpp"
#include "support/fake/operators.hpp"
#include "support/fake/queued_call.hpp"
#include "support/fake/streams.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/torch.h>

#include <cstdint>
#include <mutex>
#include <optional>

/// The operators that a device has of its own.
namespace support::fake {

inline at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                                std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                                std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(fake_device(current_device)));
  constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(kFake), kKeys,
                                           dtype.value_or(c10::get_default_dtype_as_scalartype()));
}
inline at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout>, std::optional<at::Device> device,
                        std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(fake_device(current_device)));
  constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, c10::GetAllocator(kFake), kKeys,
                                   dtype.value_or(c10::get_default_dtype_as_scalartype()), format);
}
inline at::Tensor view(const at::Tensor& t, c10::IntArrayRef size) {
  return at::native::view(t, size);
}
inline at::Tensor as_strided(const at::Tensor& t, c10::IntArrayRef size, c10::IntArrayRef stride,
                             std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(t, size, stride, offset);
}
inline const at::Tensor& resize(const at::Tensor& t, c10::IntArrayRef size,
                                std::optional<at::MemoryFormat>) {
  auto* const impl = t.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const auto bytes = static_cast<std::size_t>(t.numel() * t.element_size());
  if (t.storage().nbytes() < bytes) resize_storage(t.storage(), bytes);
  return t;
}

/// Between the host and a device, within a device, or between devices: where CUDA does it later, so
/// does this.
inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool leaves = from.is_privateuseone();
  const bool arrives = to.is_privateuseone();
  auto& queue = machine().current((leaves ? from : to).device().index());
  auto& other = machine().current((arrives ? to : from).device().index());
  const auto run = [to = raw(to), from = raw(from)] { to.copy_(from); };
  if (leaves && arrives) {
    // As if part of what both devices do: after and before their other work.
    machine().block(queue, machine().last(other));
    machine().launch(queue, &queue == &other ? kernel_time() : copy_time(to), run);
    machine().block(other, machine().last(queue));
    return to;
  }
  const auto& host = leaves ? to : from;
  machine().launch(queue, copy_time(to), run);
  const auto plain = host.is_contiguous() && from.scalar_type() == to.scalar_type();
  if (non_blocking && plain && pinned_pool().owns(host.data_ptr())) {
    pinned_pool().use(host.data_ptr(), queue);
  } else {
    machine().wait_for(queue);
  }
  return to;
}
inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}
inline at::Scalar local_scalar(const at::Tensor& t) {
  machine().wait_for(machine().current(t.device().index()));
  return raw(t).item();
}

inline at::Tensor& bernoulli(at::Tensor& t, double p, std::optional<at::Generator> own) {
  auto drawing = own ? *own : generator(t.device().index());
  auto* const draws = static_cast<Generator*>(drawing.unsafeGetGeneratorImpl());
  const std::lock_guard<std::mutex> lock(draws->mutex_);
  auto values = at::empty(t.sizes(), at::kDouble);
  for (auto *x = values.data_ptr<double>(), *end = x + values.numel(); x != end; ++x)
    *x = draws->next() < p ? 1 : 0;
  machine().launch(machine().current(t.device().index()), kernel_time(),
                   [to = raw(t), values] { to.copy_(values); });
  return t;
}

}  // namespace support::fake
