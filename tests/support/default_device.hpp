// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace support {

/// While it lives, this thread makes tensors on a device where nobody names one. LibTorch's
/// `Module::to` knows no devices of others; what is built here lives there from the start.
class DefaultDevice {
 public:
  explicit DefaultDevice(c10::Device device)
      : before_(std::exchange(device_, device)), taken_(registered()) {}
  DefaultDevice(const DefaultDevice&) = delete;
  DefaultDevice& operator=(const DefaultDevice&) = delete;
  ~DefaultDevice() { device_ = before_; }

 private:
  static constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

  static c10::DispatchKey registered() {
    static auto* const library =
        new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    static const bool once = [] {
      library->fallback(torch::CppFunction::makeFromBoxedFunction<&choose>());
      return true;
    }();
    static_cast<void>(once);
    return kKey;
  }

  static void choose(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto& arguments = op.schema().arguments();
    const auto first = stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
    const bool like_another =
        std::any_of(first, stack->end(), [](const c10::IValue& value) { return value.isTensor(); });
    for (std::size_t i = 0; i < arguments.size() && !like_another; ++i) {
      c10::IValue& value = *(first + static_cast<std::ptrdiff_t>(i));
      if (arguments[i].name() == "device" && value.isNone()) value = device_;
    }
    const c10::impl::ExcludeDispatchKeyGuard below(kKey);
    op.callBoxed(stack);
  }

  static inline thread_local c10::Device device_{c10::kCPU};

  c10::Device before_;
  c10::impl::IncludeDispatchKeyGuard taken_;
};

}  // namespace support
