// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "support/fake/controls.hpp"
#include "support/fake/device.hpp"
#include "support/fake/generator.hpp"
#include "support/fake/kernels.hpp"
#include "support/fake/memory.hpp"
#include "support/fake/operators.hpp"
#include "support/fake/streams.hpp"

#include <torch/library.h>
#include <torch/torch.h>

/// An accelerator with two devices that lives in host memory. Autograd treats it as any other: a
/// thread a device in backward, streams, events, a generator with seed and offset, a caching
/// allocator with peak statistics, pinned host memory.
///
/// It finishes each piece of work before it returns, unless told otherwise:
///
///     const support::AsyncScope scope(support::Async::Threads);
///     support::fake::delay_streams(500, /*seed=*/1);
///
/// From then on a tensor that nobody has ordered before its use holds nonsense or old values.
///
/// Registering a backend concerns the whole process: use it in executables of their own.
namespace support {

/// Registers the accelerator, once; call it first thing in `main`.
inline void install_fake_accelerator() {
  static const bool once = [] {
    c10::register_privateuse1_backend("fake");
    c10::SetAllocator(kFake, new fake::Memory, 1);
    static const c10::impl::DeviceGuardImplRegistrar guard(kFake, new fake::Guard);
    at::RegisterPrivateUse1HooksInterface(new fake::Hooks);
    static auto* const ops = new torch::Library(torch::Library::IMPL, "aten",
                                                c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    ops->impl("empty.memory_format", &fake::empty);
    ops->impl("empty_strided", &fake::empty_strided);
    ops->impl("_copy_from", &fake::copy_from);
    ops->impl("_copy_from_and_resize", &fake::copy_from_and_resize);
    ops->impl("view", &fake::view);
    ops->impl("as_strided", &fake::as_strided);
    ops->impl("resize_", &fake::resize);
    ops->impl("_local_scalar_dense", &fake::local_scalar);
    ops->impl("bernoulli_.float", &fake::bernoulli);
    static auto* const rest = new torch::Library(torch::Library::IMPL, "_",
                                                 c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    rest->fallback(torch::CppFunction::makeFromBoxedFunction<&fake::any_operator>());
    static auto* const cast = new torch::Library(
        torch::Library::IMPL, "_", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
    cast->fallback(torch::CppFunction::makeFallthrough());
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace support
