// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace refrain::detail {

/// Puts the caches in the state that a step leaves them in: between a layer's forward and its
/// backward the other layers run, and what the layer has saved is in no cache any more. A layer
/// that runs alone, again and again, would look quicker than it is.
class CacheSweep {
 public:
  /// `bytes`: what a step touches. The buffer is no part of the CPU memory that is counted.
  CacheSweep(c10::Device device, std::int64_t bytes) {
    const std::int64_t size = std::clamp<std::int64_t>(bytes, 0, kMost);
    if (device.is_cpu()) {
      memory_.resize(static_cast<std::size_t>(size));
      buffer_ = at::from_blob(memory_.data(), {size}, at::kByte);
    } else {
      buffer_ = at::zeros({size}, at::TensorOptions().dtype(at::kByte).device(device));
    }
  }
  CacheSweep(const CacheSweep&) = delete;
  CacheSweep& operator=(const CacheSweep&) = delete;
  ~CacheSweep() = default;

  /// On all the threads that operators use. Time: about 10 ms at most on a CPU.
  void run() const {
    const at::NoGradGuard no_grad;
    buffer_.add_(1);
  }

 private:
  static constexpr std::int64_t kMost = std::int64_t{64}
                                        << 20;  // more than the caches next to cores

  std::vector<std::uint8_t> memory_;
  at::Tensor buffer_;
};

}  // namespace refrain::detail
